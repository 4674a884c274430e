//! Initialisation, versions, texts of codes, and the lookup of functions by name.

use std::ffi::c_char;
use std::path::Path;
use std::sync::OnceLock;

use aliquot_gpusim_model::state::State;

use crate::calls::{SymbolLookup, calls, find};
use crate::codes::{self, ERROR_INVALID_VALUE, ERROR_NOT_FOUND};
use crate::driver::{driver, init};
use crate::ffi::{Answer, Out, TextIn};

/// The version that an uninitialised driver reports.
const VERSION: u32 = 13_000;

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM` and `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const LEGACY: u64 = 1;
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
        // This form reports only by its code, and then leaves the address alone.
        let (found, _) = search(&name, &address, version, flags)?;
        address.put(found.ok_or(ERROR_NOT_FOUND)?)
    }

    cuGetProcAddress 12000 cuGetProcAddress_v2(
        name: TextIn, address: Out<*const ()>, version: i32, flags: u64, status: Out<u32>,
    ) / 12000 cuGetProcAddress_v2_ptsz as own {
        let flags = if own && flags == 0 { PER_THREAD } else { flags };
        let (found, reason) = search(&name, &address, version, flags)?;
        status.put_if(reason);
        address.put(found.unwrap_or(std::ptr::null()))
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

/// The address of a function, and `CUdriverProcAddressQueryResult`.
fn search(
    name: &TextIn,
    address: &Out<*const ()>,
    version: i32,
    flags: u64,
) -> Answer<(Option<*const ()>, u32)> {
    let name = name.read()?;
    if flags > LEGACY | PER_THREAD || address.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    // The driver takes a negative version as a very new one.
    let version = version.cast_unsigned();
    let per_thread = flags & PER_THREAD != 0;
    Ok(match find(name, version, driver_version(), per_thread) {
        SymbolLookup::Call(call) if answers_internal_addresses() => (Some(call.internal.0), 0),
        SymbolLookup::Call(call) => (Some(call.exported.0), 0),
        SymbolLookup::Nothing => (None, 1),
        SymbolLookup::TooOld => (None, 2),
    })
}

/// Whether look-ups answer other addresses than the loader finds, as of the first one, which may come
/// before `cuInit`.
fn answers_internal_addresses() -> bool {
    static ANSWERS: OnceLock<bool> = OnceLock::new();
    *ANSWERS.get_or_init(|| {
        let path = std::env::var_os("GPUSIM_STATE");
        let state = path.and_then(|path| State::open(Path::new(&path)).ok());
        state.is_some_and(|state| {
            let machine = state.machine();
            let mut gpus = machine.existing_gpus().iter();
            gpus.any(|gpu| gpu.other_addresses != 0)
        })
    })
}
