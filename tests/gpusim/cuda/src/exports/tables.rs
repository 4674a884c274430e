//! The private table by which NVIDIA's older runtimes (libcudart up to 10.2) ask for a primary
//! context.

use std::ffi::c_void;

use crate::calls::calls;
use crate::codes::ERROR_NOT_FOUND;
use crate::driver::driver;
use crate::ffi::{Out, answer};
use crate::types::{Device, Handle, Uuid};

calls! { CALLS:
    cuGetExportTable 3000 cuGetExportTable(table: Out<*const Entry>, id: Out<Uuid>) {
        let is_known = id.get()?.starts_with(&RUNTIME_ID);
        table.put(std::ptr::null())?;
        if !is_known {
            return Err(ERROR_NOT_FOUND);
        }
        table.put(RUNTIME.as_ptr())
    }
}

/// A function of a table, or the table's length in bytes, or nothing.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Entry(*const c_void);

// SAFETY: addresses of functions and plain numbers, never read through here.
unsafe impl Sync for Entry {}

const NOTHING: Entry = Entry(std::ptr::null());

const fn bytes(count: usize) -> Entry {
    Entry(std::ptr::without_provenance(count * size_of::<Entry>()))
}

/// The first bytes of the table's id.
const RUNTIME_ID: [u8; 4] = [0x6b, 0xd5, 0xfb, 0x6c];

static RUNTIME: [Entry; 10] = [
    bytes(10),
    NOTHING,
    Entry(primary_context as *const c_void),
    NOTHING,
    NOTHING,
    NOTHING,
    NOTHING,
    NOTHING,
    NOTHING,
    NOTHING,
];

extern "C" fn primary_context(context: Out<Handle>, device: Device) -> u32 {
    answer("cuGetExportTable", || {
        let driver = driver()?;
        context.put(driver.contexts.retain(driver, device)?.handle())
    })
}
