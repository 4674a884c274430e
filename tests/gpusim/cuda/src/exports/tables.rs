//! The private tables that NVIDIA's older runtimes (libcudart up to 10.2) ask for: a primary
//! context, two scratch buffers, and storage that belongs to a context. Newer runtimes check a
//! driver's authenticity by another table, which is missing here.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::c_void;

use parking_lot::Mutex;

use crate::calls::calls;
use crate::codes::{ERROR_INVALID_VALUE, ERROR_NOT_FOUND};
use crate::driver::driver;
use crate::exports::context::named;
use crate::ffi::{Answer, Out, answer};
use crate::types::{Device, Handle, Uuid};

calls! { CALLS:
    cuGetExportTable 3000 cuGetExportTable(table: Out<*const Entry>, id: Out<Uuid>) {
        let id = id.get()?;
        let found = TABLES.iter().find(|(start, _)| id.starts_with(start));
        table.put(std::ptr::null())?;
        table.put(found.ok_or(ERROR_NOT_FOUND)?.1.as_ptr())
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

/// Each table by the first bytes of its id.
static TABLES: [([u8; 4], &[Entry]); 4] = [
    ([0x6b, 0xd5, 0xfb, 0x6c], &RUNTIME),
    ([0xa0, 0x94, 0x79, 0x8c], &SCRATCH),
    ([0x42, 0xd8, 0x5a, 0x81], &EMPTY),
    ([0xc6, 0x93, 0x33, 0x6e], &STORAGE),
];

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
static SCRATCH: [Entry; 7] = [
    bytes(7),
    NOTHING,
    Entry(large_buffer as *const c_void),
    NOTHING,
    NOTHING,
    NOTHING,
    Entry(small_buffer as *const c_void),
];
static EMPTY: [Entry; 4] = [bytes(4), NOTHING, NOTHING, NOTHING];
static STORAGE: [Entry; 4] = [
    Entry(storage_put as *const c_void),
    Entry(storage_delete as *const c_void),
    Entry(storage_get as *const c_void),
    NOTHING,
];

extern "C" fn primary_context(context: Out<Handle>, device: Device) -> u32 {
    answer("cuGetExportTable", || {
        let driver = driver()?;
        context.put(driver.contexts.retain(driver, device)?.handle())
    })
}

/// Memory that a client writes as it likes.
struct Buffer<const N: usize>(UnsafeCell<[u64; N]>);

// SAFETY: only its address is used here; what clients do with it is between them.
unsafe impl<const N: usize> Sync for Buffer<N> {}

static LARGE: Buffer<512> = Buffer(UnsafeCell::new([0; 512]));
static SMALL: Buffer<16> = Buffer(UnsafeCell::new([0; 16]));

extern "C" fn large_buffer(place: Out<*mut u64>, size: Out<usize>) {
    give_buffer(&LARGE, &place, &size);
}

extern "C" fn small_buffer(place: Out<*mut u64>, size: Out<usize>) {
    give_buffer(&SMALL, &place, &size);
}

fn give_buffer<const N: usize>(buffer: &Buffer<N>, place: &Out<*mut u64>, size: &Out<usize>) {
    place.put_if(buffer.0.get().cast());
    size.put_if(N);
}

/// What clients store for a context, by context and key.
static CONTEXT_STORAGE: Mutex<Option<HashMap<(Handle, u64), u64>>> = Mutex::new(None);

fn with_context_storage<T>(body: impl FnOnce(&mut HashMap<(Handle, u64), u64>) -> T) -> T {
    body(CONTEXT_STORAGE.lock().get_or_insert_with(HashMap::new))
}

extern "C" fn storage_put(context: Handle, key: u64, value: u64, _end: u64) -> u32 {
    with_context(context, |context| {
        with_context_storage(|all| all.insert((context, key), value));
        Ok(())
    })
}

extern "C" fn storage_delete(context: Handle, key: u64) -> u32 {
    with_context(context, |context| {
        with_context_storage(|all| all.remove(&(context, key)));
        Ok(())
    })
}

extern "C" fn storage_get(value: Out<u64>, context: Handle, key: u64) -> u32 {
    with_context(context, |context| {
        let found = with_context_storage(|all| all.get(&(context, key)).copied());
        value.put(found.ok_or(ERROR_INVALID_VALUE)?)
    })
}

fn with_context(context: Handle, body: impl FnOnce(Handle) -> Answer) -> u32 {
    answer("cuGetExportTable", || body(named(context)?.handle()))
}
