//! The driver's own functions, behind the hooked ones.
//!
//! A shim library loads the real one under another name. Without shims, ours opens the real one by
//! its usual name. It never finds its own functions.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::early::DLSYM;
use crate::ffi::{Code, NO_DEVICE, NVML_LIBRARY_NOT_FOUND};

pub(crate) mod call;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverLibrary {
    Cuda,
    Nvml,
}

impl DriverLibrary {
    /// The name beside a shim library, and the usual name.
    fn names(self) -> [&'static CStr; 2] {
        match self {
            Self::Cuda => [c"libcuda-real.so.1", c"libcuda.so.1"],
            Self::Nvml => [c"libnvidia-ml-real.so.1", c"libnvidia-ml.so.1"],
        }
    }

    fn place(self) -> &'static AtomicPtr<c_void> {
        static HANDLES: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];
        &HANDLES[usize::from(self == Self::Nvml)]
    }

    /// Uses the copy in which the application found `address` as the real library, if no other copy
    /// is in use yet: it may be in a linker namespace or under a path of its own.
    pub(crate) fn adopt(self, handle: *mut c_void, address: *mut c_void) {
        if !self.place().load(Ordering::Acquire).is_null() {
            return;
        }
        let mut namespace: libc::c_long = 0;
        let into: *mut c_void = (&raw mut namespace).cast();
        // SAFETY: a handle that dlsym just accepted; the request writes one namespace id.
        let asked = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LMID, into) };
        let Some(found) = library_of(address).filter(|_| asked == 0) else {
            return;
        };
        let keep = libc::RTLD_NOW | libc::RTLD_NODELETE;
        // SAFETY: the name of a library that is loaded in that namespace.
        let own = unsafe { libc::dlmopen(namespace, found.dli_fname, keep) };
        self.place().store(own, Ordering::Release);
    }

    /// The answer if it lacks a function or is absent.
    pub(crate) const fn missing(self) -> Code {
        match self {
            Self::Cuda => NO_DEVICE,
            Self::Nvml => NVML_LIBRARY_NOT_FOUND,
        }
    }

    pub(crate) fn is_found(self) -> bool {
        !self.handle().is_null()
    }

    /// A function of it, whether the table has it or not; null if it has none of that name.
    pub(crate) fn find(self, name: &CStr) -> *mut c_void {
        search(self.handle(), name)
    }

    fn handle(self) -> *mut c_void {
        // How much was loaded when this library was last looked for in vain: each search opens files
        // in every folder of the loader's.
        static MISSING: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
        let place = self.place();
        let known = place.load(Ordering::Acquire);
        let missing = &MISSING[usize::from(self == Self::Nvml)];
        if !known.is_null() || missing.load(Ordering::Relaxed) == count_of_loads() {
            return known;
        }
        let [beside, usual] = self.names();
        // SAFETY: a C string; the handle is never closed.
        let loaded =
            || unsafe { libc::dlopen(beside.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        let mut handle = loaded();
        if handle.is_null() {
            // SAFETY: the same.
            let opened = unsafe { libc::dlopen(usual.as_ptr(), libc::RTLD_NOW) };
            // Where that is a shim, it has loaded the real one.
            handle = loaded();
            if handle.is_null() {
                handle = opened;
            }
        }
        if handle.is_null() {
            missing.store(count_of_loads(), Ordering::Relaxed);
        } else {
            place.store(handle, Ordering::Release);
        }
        handle
    }
}

/// How many libraries the process has loaded so far.
fn count_of_loads() -> u64 {
    unsafe extern "C" fn read(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        count: *mut c_void,
    ) -> c_int {
        // SAFETY: the first library's facts, and the place below.
        unsafe { *count.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut count = 0_u64;
    // SAFETY: what it calls ends at the first library.
    unsafe { libc::dl_iterate_phdr(Some(read), (&raw mut count).cast()) };
    count
}

/// What the loader knows of the library that contains an address.
fn library_of(address: *mut c_void) -> Option<libc::Dl_info> {
    // SAFETY: zero is a value of every field.
    let mut found: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: any address may be looked up.
    let is_known = unsafe { libc::dladdr(address.cast_const(), &raw mut found) } != 0;
    (is_known && !found.dli_fname.is_null()).then_some(found)
}

pub(crate) fn in_same_library(one: *mut c_void, other: *mut c_void) -> bool {
    let base = |address| library_of(address).map(|found| found.dli_fbase);
    base(one).is_some() && base(one) == base(other)
}

/// Whether an address is in a copy of this library: another linker namespace has a copy of its own,
/// where a shim has loaded it.
pub(crate) fn is_in_limiter(address: *mut c_void) -> bool {
    let file = |address| {
        // SAFETY: the name of a library that is loaded, and stays loaded.
        library_of(address).map(|found| unsafe { CStr::from_ptr(found.dli_fname) })
    };
    let own = file(is_in_limiter as *mut c_void);
    own.is_some() && file(address) == own
}

type Search = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

pub(crate) fn search(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let address = DLSYM.find();
    if address.is_null() || handle.is_null() {
        return null_mut();
    }
    // SAFETY: that address is libc's dlsym.
    let dlsym = unsafe { core::mem::transmute::<*mut c_void, Search>(address) };
    // SAFETY: the handle is open and the name a C string.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// The address of a function that we export.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub(crate) *const ());

// SAFETY: the address of a function; nothing is read through it.
unsafe impl Sync for Address {}

/// One function of the driver, looked up at first use.
#[derive(Debug)]
pub(crate) struct DriverFunction {
    pub(crate) library: DriverLibrary,
    name: &'static CStr,
    /// What we export under its name; null if nothing.
    pub(crate) ours: Address,
    address: AtomicPtr<c_void>,
}

impl DriverFunction {
    /// The function with this name, which ends with a zero.
    pub(crate) const fn new(library: DriverLibrary, name: &'static str, ours: Address) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            panic!("a name without a zero inside");
        };
        Self {
            library,
            name,
            ours,
            address: AtomicPtr::new(null_mut()),
        }
    }

    /// Its address; `None` if this driver does not have it, or if ours is found under its name.
    #[inline]
    pub(crate) fn get(&self) -> Option<*mut c_void> {
        let known = self.address.load(Ordering::Acquire);
        if known.is_null() {
            self.find()
        } else {
            Some(known)
        }
    }

    #[cold]
    fn find(&self) -> Option<*mut c_void> {
        let found = search(self.library.handle(), self.name);
        if found.is_null() || core::ptr::eq(self.ours.0, found.cast_const().cast()) {
            return None;
        }
        self.address.store(found, Ordering::Release);
        Some(found)
    }
}
