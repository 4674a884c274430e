//! The edge to C: pointers that callers hand us, and answers. All dereferencing of callers'
//! pointers is here. A panic never crosses into C: it becomes `CUDA_ERROR_UNKNOWN`.
//!
//! The pointer types can only be received from C, and CUDA's contract is the caller's promise
//! that each pointer is null or points to what the call documents.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::codes::{ERROR_INVALID_VALUE, ERROR_UNKNOWN, SUCCESS};
use crate::driver::{driver, wait_while_suspended};
use crate::{injection, mps};

/// What a call comes to; the error is a `CUresult` other than success.
pub(crate) type Answer<T = ()> = Result<T, u32>;

/// Runs the body of the exported call `symbol`.
#[inline]
pub(crate) fn answer(symbol: &'static str, body: impl FnOnce() -> Answer) -> u32 {
    if let Some(code) = injection::of_call(symbol) {
        if let Ok(driver) = driver() {
            mps::report_fatal_error(driver, code);
        }
        return code;
    }
    injection::pause_first_call(symbol);
    wait_while_suspended(symbol);
    let code = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => ERROR_UNKNOWN,
    };
    injection::delay(symbol);
    code
}

/// The caller's pointer to a `T`, or to an array of them.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// A place of the caller's that lies in one of its structs.
    pub(crate) fn at(place: *mut T) -> Self {
        Self(place)
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes the value; refuses null.
    pub(crate) fn put(&self, value: T) -> Answer {
        self.put_at(0, value)
    }

    /// Writes the value unless the pointer is null.
    pub(crate) fn put_if(&self, value: T) {
        let _ = self.put(value);
    }

    /// Writes element `index`; the caller reported that there is room for it.
    pub(crate) fn put_at(&self, index: usize, value: T) -> Answer {
        if self.0.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and room for the value by the caller's promise (see the module).
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// Reads what the caller put there.
    pub(crate) fn get(&self) -> Answer<T> {
        if self.0.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and filled in by the caller's promise (see the module).
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads an array that the caller filled in; an empty one may be null.
    pub(crate) fn get_all(&self, count: usize) -> Answer<Vec<T>> {
        if count > 0 && self.0.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and `count` long by the caller's promise (see the module).
        Ok((0..count)
            .map(|index| unsafe { self.0.add(index).read_unaligned() })
            .collect())
    }
}

impl Out<u64> {
    /// The same place for a value of 4 bytes.
    pub(crate) fn narrow(&self) -> Out<u32> {
        Out(self.0.cast())
    }

    /// The same place for a value of 1 byte.
    pub(crate) fn byte(&self) -> Out<u8> {
        Out(self.0.cast())
    }
}

impl Out<c_char> {
    /// Writes text, truncated to `length` bytes with its closing zero.
    pub(crate) fn put_text(&self, length: i32, text: &str) -> Answer {
        let length = usize::try_from(length).map_err(|_| ERROR_INVALID_VALUE)?;
        let room = length.checked_sub(1).ok_or(ERROR_INVALID_VALUE)?;
        let shown = text.bytes().take(room).chain([0]).map(u8::cast_signed);
        shown
            .enumerate()
            .try_for_each(|(index, byte)| self.put_at(index, byte))
    }
}

/// Text that a caller hands us.
#[repr(transparent)]
pub(crate) struct TextIn(*const c_char);

impl TextIn {
    pub(crate) fn read(&self) -> Answer<&str> {
        if self.0.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and zero-terminated by the caller's promise; used within the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| ERROR_INVALID_VALUE)
    }
}

/// Copies bytes between two places that callers named, or that lie in this driver's arena.
pub(crate) fn copy(to: u64, from: u64, bytes: usize) {
    // SAFETY: both ranges are the caller's by its promise, or were checked to lie in mapped
    // memory of the arena; `copy` allows them to overlap.
    unsafe {
        std::ptr::copy(
            as_pointer(from).cast::<u8>().cast_const(),
            as_pointer(to).cast::<u8>(),
            bytes,
        );
    }
}

/// An address that C gave as a number.
pub(crate) fn as_pointer(address: u64) -> *mut c_void {
    let address = usize::try_from(address).expect("a 64-bit machine");
    std::ptr::with_exposed_provenance_mut(address)
}
