//! The edge to C: pointers that callers hand us, and answers. All dereferencing of foreign
//! pointers is here. A panic never crosses into C: it becomes `NVML_ERROR_UNKNOWN`.
//!
//! The types can only be received from C (their fields are private), and NVML's contract is the
//! caller's promise that each pointer is null or points to room for what the call documents.

use std::ffi::{CStr, c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as ARGUMENT_VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
    nvmlReturn_t,
};

/// The result of a call; the error is an `nvmlReturn_t` other than success.
pub(crate) type Answer<T = ()> = Result<T, nvmlReturn_t>;

/// Runs the body of an exported call.
pub(crate) fn answer(body: impl FnOnce() -> Answer) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// NVML's number for version `version` of a struct.
pub(crate) const fn struct_version<T>(version: u32) -> c_uint {
    let size = size_of::<T>();
    assert!(size < 1 << 24);
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let size = size as u32;
    size | (version << 24)
}

/// The caller's output: a `T`, or an array of them.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn put(&self, value: T) -> Answer {
        self.put_all(&[value])
    }

    /// Writes an array; the caller reported that there is room for it.
    pub(crate) fn put_all(&self, values: &[T]) -> Answer {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and room for the values by the caller's promise (see the module).
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }

    /// Reads what the caller put there, which NVML documents as an input.
    pub(crate) fn get(&self) -> Answer<T> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and filled in by the caller's promise (see the module).
        Ok(unsafe { self.0.read() })
    }

    /// Reads an array that the caller filled in.
    pub(crate) fn get_all(&self, count: usize) -> Answer<Vec<T>> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and `count` long by the caller's promise (see the module).
        Ok((0..count)
            .map(|index| unsafe { self.0.add(index).read() })
            .collect())
    }

    /// Checks the version number with which every versioned struct begins.
    pub(crate) fn check_version(&self, version: u32) -> Answer {
        if Out(self.0.cast::<c_uint>()).get()? == struct_version::<T>(version) {
            Ok(())
        } else {
            Err(ARGUMENT_VERSION_MISMATCH)
        }
    }

    /// The same place with values of another type, which the caller of such a driver expects there.
    pub(crate) fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Another array, in a struct of the caller's.
    pub(crate) fn array(pointer: *mut T) -> Self {
        Self(pointer)
    }
}

/// The two-call protocol: the caller passes its capacity, and gets the required size.
pub(crate) fn put_list<T: Copy>(count: &Out<c_uint>, list: &Out<T>, values: &[T]) -> Answer {
    let room = usize::try_from(count.get()?).map_err(|_| UNKNOWN)?;
    count.put(c_uint::try_from(values.len()).map_err(|_| UNKNOWN)?)?;
    if values.is_empty() {
        Ok(())
    } else if room < values.len() {
        Err(INSUFFICIENT_SIZE)
    } else {
        list.put_all(values)
    }
}

/// Writes text with its closing zero into a buffer of `length` bytes.
pub(crate) fn put_text(buffer: &Out<c_char>, length: c_uint, text: &str) -> Answer {
    let bytes: Vec<c_char> = c_chars(text).collect();
    if usize::try_from(length).map_err(|_| UNKNOWN)? < bytes.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    buffer.put_all(&bytes)
}

/// Text as a fixed array; truncated if it does not fit.
pub(crate) fn text_field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(c_chars(text)).take(N - 1) {
        *to = from;
    }
    field
}

fn c_chars(text: &str) -> impl Iterator<Item = c_char> {
    text.bytes().chain([0]).map(u8::cast_signed)
}

/// Text that a caller hands us.
#[repr(transparent)]
pub(crate) struct TextIn(*const c_char);

impl TextIn {
    /// Text that lies in a struct of the caller's.
    pub(crate) fn of(pointer: *const c_char) -> Self {
        Self(pointer)
    }

    pub(crate) fn read(&self) -> Answer<&str> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and zero-terminated by the caller's promise; used within the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| INVALID_ARGUMENT)
    }
}
