//! A C client of the driver: the library opened by path, calls by name, codes.

use std::ffi::{CString, c_void};
use std::path::Path;

use aliquot_gpusim::place;

pub(crate) const OK: u32 = 0;
pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NO_DEVICE: u32 = 100;
pub(crate) const INVALID_HANDLE: u32 = 400;
pub(crate) const NOT_FOUND: u32 = 500;
pub(crate) const NOT_READY: u32 = 600;

pub(crate) const MIB: u64 = 1 << 20;

/// The opened library.
#[derive(Clone, Copy)]
pub(crate) struct Cuda(*mut c_void);

// SAFETY: a handle of the loader's, valid in every thread for as long as the process lives.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Opens the library as a client does.
    pub(crate) fn open() -> Self {
        Self::open_at(&place::cuda_library_path().unwrap())
    }

    pub(crate) fn open_at(path: &Path) -> Self {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the library has no load-time code of its own.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "cannot open {path:?}");
        Self(handle)
    }

    /// Opens and initialises it, with the primary context of device 0 current.
    pub(crate) fn ready() -> Self {
        let cuda = Self::open();
        ok!(cuda, cuInit(u32: 0));
        ok!(cuda, cuCtxSetCurrent(u64: cuda.primary(0)));
        cuda
    }

    /// Retains the primary context of a device.
    pub(crate) fn primary(self, device: i32) -> u64 {
        let mut context = 0;
        ok!(self, cuDevicePrimaryCtxRetain(*mut u64: &raw mut context, i32: device));
        context
    }

    pub(crate) fn find(self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is open and the name ends with a zero.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }

    pub(crate) fn symbol(self, name: &str) -> *mut c_void {
        let symbol = self.find(name);
        assert!(!symbol.is_null(), "no {name}");
        symbol
    }

    /// `cuMemGetInfo`: free and total bytes.
    pub(crate) fn info(self) -> (u64, u64) {
        let (mut free, mut total) = (0_u64, 0_u64);
        ok!(self, cuMemGetInfo_v2(*mut u64: &raw mut free, *mut u64: &raw mut total));
        (free, total)
    }

    pub(crate) fn alloc(self, bytes: u64) -> Result<u64, u32> {
        let mut pointer = 0;
        match call!(self, cuMemAlloc_v2(*mut u64: &raw mut pointer, u64: bytes)) {
            OK => Ok(pointer),
            code => Err(code),
        }
    }
}

/// Calls a function with arguments of types that are what its documentation asks for:
/// `name(type: value)`.
macro_rules! call {
    ($cuda:expr, $name:ident($($kind:ty: $argument:expr),* $(,)?)) => {{
        let symbol = $cuda.symbol(stringify!($name));
        // SAFETY: the symbol is a C function of this signature by the driver's documentation;
        // each argument is what it documents, or null where that is tested.
        unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn($($kind),*) -> u32>(symbol)
                ($($argument),*)
        }
    }};
}
pub(crate) use call;

/// A call that succeeds.
macro_rules! ok {
    ($($call:tt)*) => {
        assert_eq!($crate::client::call!($($call)*), $crate::client::OK)
    };
}
pub(crate) use ok;

impl Cuda {
    /// A kernel by its name, of a module that has all.
    pub(crate) fn kernel(self, name: &str) -> u64 {
        let (mut module, mut function) = (0, 0);
        let image = c"any";
        ok!(self, cuModuleLoadData(
            *mut u64: &raw mut module, *const i8: image.as_ptr(),
        ));
        let name = CString::new(name).unwrap();
        ok!(self, cuModuleGetFunction(
            *mut u64: &raw mut function, u64: module, *const i8: name.as_ptr(),
        ));
        function
    }

    /// Launches one block.
    pub(crate) fn launch(self, function: u64, stream: u64) -> u32 {
        call!(self, cuLaunchKernel(
            u64: function, u32: 1, u32: 1, u32: 1, u32: 32, u32: 1, u32: 1, u32: 0, u64: stream,
            u64: 0, u64: 0,
        ))
    }

    /// A stream that is not bound to the legacy one.
    pub(crate) fn stream(self) -> u64 {
        let mut stream = 0;
        ok!(self, cuStreamCreate(*mut u64: &raw mut stream, u32: 1));
        stream
    }

    pub(crate) fn event(self) -> u64 {
        let mut event = 0;
        ok!(self, cuEventCreate(*mut u64: &raw mut event, u32: 0));
        event
    }

    pub(crate) fn record(self, event: u64, stream: u64) -> u32 {
        call!(self, cuEventRecord(u64: event, u64: stream))
    }

    pub(crate) fn query(self, event: u64) -> u32 {
        call!(self, cuEventQuery(u64: event))
    }

    pub(crate) fn synchronize(self) -> u32 {
        call!(self, cuCtxSynchronize())
    }

    /// Milliseconds between two events.
    pub(crate) fn elapsed(self, start: u64, end: u64) -> Result<f32, u32> {
        let mut time = 0.0;
        match call!(self, cuEventElapsedTime(*mut f32: &raw mut time, u64: start, u64: end)) {
            OK => Ok(time),
            code => Err(code),
        }
    }
}
