//! Initialisation, versions, texts of codes, and the lookup of functions by name.

use std::ffi::c_char;

use crate::calls::{SymbolLookup, calls, find};
use crate::codes::{self, ERROR_INVALID_VALUE, ERROR_NOT_FOUND};
use crate::driver::{driver, init};
use crate::ffi::{Answer, Out, TextIn};

/// The version that an uninitialised driver reports.
const VERSION: u32 = 13_000;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

calls! { CALLS:
    cuInit 2000 cuInit(flags: u32) { init(flags) }

    cuDriverGetVersion 2020 cuDriverGetVersion(version: Out<i32>) {
        version.put(driver_version().cast_signed())
    }

    cuGetErrorName 6000 cuGetErrorName(code: u32, name: Out<*const c_char>) {
        describe(code, &name, |(name, _)| name.as_ptr())
    }

    cuGetErrorString 6000 cuGetErrorString(code: u32, words: Out<*const c_char>) {
        describe(code, &words, |(_, words)| words.as_ptr())
    }

    cuGetProcAddress 11030 cuGetProcAddress(
        name: TextIn, address: Out<*const ()>, version: i32, flags: u64,
    ) {
        search(&name, &address, version, flags, None)
    }

    cuGetProcAddress 12000 cuGetProcAddress_v2(
        name: TextIn, address: Out<*const ()>, version: i32, flags: u64, status: Out<u32>,
    ) {
        search(&name, &address, version, flags, Some(&status))
    }
}

/// The machine's CUDA version.
pub(crate) fn driver_version() -> u32 {
    driver().map_or(VERSION, |driver| {
        driver.with_machine(|machine| machine.cuda)
    })
}

type Description = (&'static std::ffi::CStr, &'static std::ffi::CStr);

fn describe(code: u32, out: &Out<*const c_char>, part: fn(Description) -> *const c_char) -> Answer {
    let found = codes::describe(code);
    out.put(found.map_or(std::ptr::null(), part))?;
    found.map(|_| ()).ok_or(ERROR_INVALID_VALUE)
}

fn search(
    name: &TextIn,
    address: &Out<*const ()>,
    version: i32,
    flags: u64,
    status: Option<&Out<u32>>,
) -> Answer {
    let name = name.read()?;
    let version = u32::try_from(version).map_err(|_| ERROR_INVALID_VALUE)?;
    if flags > PER_THREAD || address.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    let (found, told) = match find(name, version, driver_version(), flags == PER_THREAD) {
        SymbolLookup::Call(call) => (Some(call.address.0), 0),
        SymbolLookup::Nothing => (None, 1),
        SymbolLookup::TooOld => (None, 2),
    };
    if let Some(status) = status {
        status.put_if(told);
    }
    address.put(found.unwrap_or(std::ptr::null()))?;
    found.map(|_| ()).ok_or(ERROR_NOT_FOUND)
}
