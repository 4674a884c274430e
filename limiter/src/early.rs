//! What our `dlsym` does for every program of the container, before it knows that a name is the
//! driver's. A sanitizer or a library that wraps functions of libc calls `dlsym` before it can be
//! called itself, and its `dlopen`, `strlen` or `memcmp` stands before libc's. So nothing here calls
//! another library: libc's `dlsym` comes from the loader's lists, as its clock does, and strings are
//! compared by volatile reads, because the compiler puts a call of libc in the place of other loops.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// `r_debug_extended`: the objects of a linker namespace, and the next namespace.
#[repr(C)]
struct Namespace {
    version: c_int,
    objects: *const Object,
    _breakpoint: usize,
    _state: c_int,
    _loader: usize,
    /// From version 2 on (glibc 2.35).
    next: *const Namespace,
}

/// The public part of `link_map`.
#[repr(C)]
struct Object {
    base: usize,
    _name: *const c_char,
    dynamic: *const Entry,
    next: *const Object,
}

/// An entry of a dynamic section.
#[repr(C)]
struct Entry {
    tag: usize,
    value: usize,
}

/// An entry of a symbol table.
#[repr(C)]
struct Symbol {
    name: u32,
    kind: u8,
    _visibility: u8,
    _section: u16,
    value: usize,
    _size: usize,
}

const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_SONAME: usize = 14;
const DT_GNU_HASH: usize = 0x6fff_fef5;

/// The kind of a symbol that is a function, in its lower half. Others are called to find one.
const FUNCTION: u8 = 2;

unsafe extern "C" {
    /// The loader's.
    static _r_debug: Namespace;
    /// Our own dynamic section, whose symbol no other object sees.
    static _DYNAMIC: Entry;
}

/// A function of libc, whatever we or other libraries export under its name.
#[repr(C)]
pub(crate) struct LibcFunction {
    /// Null until it is looked up. The first field, because machine code jumps to it.
    address: AtomicPtr<c_void>,
    /// With a zero at the end.
    name: &'static [u8],
    /// Of the name in a table of symbols.
    hash: u32,
}

/// libc's own `dlsym`.
pub(crate) static DLSYM: LibcFunction = LibcFunction::new(b"dlsym\0");
/// libc's own clock: in a program with a faked clock, another one stands before it.
pub(crate) static CLOCK_GETTIME: LibcFunction = LibcFunction::new(b"clock_gettime\0");

impl LibcFunction {
    const fn new(name: &'static [u8]) -> Self {
        let (mut hash, mut at) = (5381_u32, 0);
        while name[at] != 0 {
            hash = hash.wrapping_mul(33).wrapping_add(name[at] as u32);
            at += 1;
        }
        Self {
            address: AtomicPtr::new(null_mut()),
            name,
            hash,
        }
    }

    /// Null where libc lacks it.
    #[inline]
    pub(crate) fn find(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        find_all();
        self.address.load(Ordering::Acquire)
    }
}

/// All at once, at the first call: where a program loaded us itself, another thread of it may close
/// a library while the loader's lists are read, and the earlier, the less likely.
#[cold]
fn find_all() {
    // SAFETY: the loader's lists are complete before anyone calls us, and what is loaded at a
    // program's start, as libc, stays there.
    unsafe {
        let objects = own_objects();
        let (dlsym, clock) = (find(objects, &DLSYM), find(objects, &CLOCK_GETTIME));
        DLSYM.address.store(dlsym, Ordering::Release);
        CLOCK_GETTIME.address.store(clock, Ordering::Release);
    }
}

/// Whether a name may be the driver's: `cu` or `nvml`, and a capital letter.
///
/// # Safety
///
/// The name is a C string.
pub(crate) unsafe fn may_be_of_driver(name: *const c_char) -> bool {
    let name: *const u8 = name.cast();
    // SAFETY: what follows the bytes of a prefix is at most the string's end.
    unsafe {
        (starts_with(name, b"cu") && (*name.add(2)).is_ascii_uppercase())
            || (starts_with(name, b"nvml") && (*name.add(4)).is_ascii_uppercase())
    }
}

/// The first object of our own namespace. Before glibc 2.35, only the first namespace is listed: its
/// `dlsym` answers in all of them, but `dlerror` does not.
unsafe fn own_objects() -> *const Object {
    // SAFETY: these lists are the loader's.
    unsafe {
        let mut namespace = &raw const _r_debug;
        loop {
            let mut object = (*namespace).objects;
            while !object.is_null() {
                if (*object).dynamic == &raw const _DYNAMIC {
                    return (*namespace).objects;
                }
                object = (*object).next;
            }
            if (*namespace).version < 2 || (*namespace).next.is_null() {
                return _r_debug.objects;
            }
            namespace = (*namespace).next;
        }
    }
}

/// A function of libc among these objects; null if it is not there.
unsafe fn find(mut object: *const Object, function: &LibcFunction) -> *mut c_void {
    // SAFETY: loaded objects, whose tables are those of ELF.
    unsafe {
        while !object.is_null() {
            // Before glibc 2.34, dlsym is in libdl.
            let name = table::<u8>(object, DT_STRTAB).add(entry(object, DT_SONAME));
            if starts_with(name, b"libc.so.6\0") || starts_with(name, b"libdl.so.2\0") {
                let found = function_in(object, function);
                if !found.is_null() {
                    return found;
                }
            }
            object = (*object).next;
        }
    }
    null_mut()
}

/// A function of one object, by its hash table: four numbers, a filter of words, buckets, chains.
unsafe fn function_in(object: *const Object, function: &LibcFunction) -> *mut c_void {
    // SAFETY: a library of the C library's, which has these tables.
    unsafe {
        let hashes = table::<u32>(object, DT_GNU_HASH);
        if hashes.is_null() {
            return null_mut();
        }
        let (buckets, first) = (*hashes as usize, *hashes.add(1) as usize);
        let filter = *hashes.add(2) as usize * (size_of::<usize>() / size_of::<u32>());
        let start = hashes.add(4 + filter);
        let Some(bucket) = (function.hash as usize).checked_rem(buckets) else {
            return null_mut();
        };
        let mut index = *start.add(bucket) as usize;
        while index >= first {
            let hash = *start.add(buckets + index - first);
            let symbol = table::<Symbol>(object, DT_SYMTAB).add(index);
            let name = table::<u8>(object, DT_STRTAB).add((*symbol).name as usize);
            let is_named = hash | 1 == function.hash | 1 && starts_with(name, function.name);
            if is_named && (*symbol).kind & 15 == FUNCTION {
                let address = (*object).base.wrapping_add((*symbol).value);
                return core::ptr::with_exposed_provenance_mut(address);
            }
            if hash & 1 == 1 {
                break;
            }
            index += 1;
        }
    }
    null_mut()
}

/// An entry of an object's dynamic section; 0 if it has none.
unsafe fn entry(object: *const Object, tag: usize) -> usize {
    // SAFETY: an entry without a tag ends the section.
    unsafe {
        let mut entry = (*object).dynamic;
        while (*entry).tag != 0 && (*entry).tag != tag {
            entry = entry.add(1);
        }
        if (*entry).tag == 0 { 0 } else { (*entry).value }
    }
}

/// A table of an object; null if it has none. The loader replaces its place in the file by its
/// address, except in sections that are read-only.
unsafe fn table<T>(object: *const Object, tag: usize) -> *const T {
    // SAFETY: a loaded object.
    let (value, base) = unsafe { (entry(object, tag), (*object).base) };
    let is_place = value != 0 && value < base;
    core::ptr::with_exposed_provenance(if is_place { value + base } else { value })
}

/// Whether a C string starts with these bytes; the last one may be the string's end.
unsafe fn starts_with(text: *const u8, bytes: &[u8]) -> bool {
    let mut at = 0;
    // SAFETY: all bytes before this one are in the string.
    while at < bytes.len() && unsafe { text.add(at).read_volatile() } == bytes[at] {
        at += 1;
    }
    at == bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_libcs_own_functions() {
        let dlsym = libc::dlsym as *const c_void;
        assert_eq!(DLSYM.find().cast_const(), dlsym);
        // Without it, each read of the clock enters the kernel.
        let clock = libc::clock_gettime as *const c_void;
        assert_eq!(CLOCK_GETTIME.find().cast_const(), clock);
    }
}
