//! The linker of PTX and object files: what is added becomes one image with the functions of all
//! of it, as the loader of modules understands it.

use std::ffi::c_void;

use parking_lot::Mutex;

use crate::calls::calls;
use crate::codes::{ERROR_FILE_NOT_FOUND, ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE};
use crate::context::current;
use crate::driver::driver;
use crate::ffi::{Answer, Out, TextIn};
use crate::types::Handle;

/// A link in progress; what it completes lives as long as it.
#[derive(Default)]
pub(crate) struct Linker(Mutex<Vec<u8>>);

calls! { CALLS:
    cuLinkCreate 5050 cuLinkCreate(
        _count: u32, _options: *const u32, _values: *const *mut c_void, state: Out<Handle>,
    ) {
        create(&state)
    }

    cuLinkCreate 6050 cuLinkCreate_v2(
        _count: u32, _options: *const u32, _values: *const *mut c_void, state: Out<Handle>,
    ) {
        create(&state)
    }

    cuLinkAddData 5050 cuLinkAddData(
        state: Handle, _kind: u32, data: Out<u8>, size: usize, _name: u64, _count: u32,
        _options: *const u32, _values: *const *mut c_void,
    ) {
        add(state, &data.get_all(size)?)
    }

    cuLinkAddData 6050 cuLinkAddData_v2(
        state: Handle, _kind: u32, data: Out<u8>, size: usize, _name: u64, _count: u32,
        _options: *const u32, _values: *const *mut c_void,
    ) {
        add(state, &data.get_all(size)?)
    }

    cuLinkAddFile 5050 cuLinkAddFile(
        state: Handle, _kind: u32, path: TextIn, _count: u32, _options: *const u32,
        _values: *const *mut c_void,
    ) {
        add_file(state, &path)
    }

    cuLinkAddFile 6050 cuLinkAddFile_v2(
        state: Handle, _kind: u32, path: TextIn, _count: u32, _options: *const u32,
        _values: *const *mut c_void,
    ) {
        add_file(state, &path)
    }

    cuLinkComplete 5050 cuLinkComplete(state: Handle, image: Out<*const u8>, size: Out<usize>) {
        let known = driver()?.objects.linkers.get(state, ERROR_INVALID_HANDLE)?;
        let mut bytes = known.0.lock();
        if bytes.is_empty() {
            return Err(ERROR_INVALID_VALUE);
        }
        // Closes text, which the loader reads up to a zero.
        if bytes.last() != Some(&0) {
            bytes.push(0);
        }
        size.put_if(bytes.len());
        image.put(bytes.as_ptr())
    }

    cuLinkDestroy 5050 cuLinkDestroy(state: Handle) {
        driver()?.objects.linkers.remove(state, ERROR_INVALID_HANDLE).map(|_| ())
    }
}

fn create(state: &Out<Handle>) -> Answer {
    current()?;
    state.put(driver()?.objects.linkers.add(Linker::default()))
}

/// Texts follow each other; of binary images the first is retained.
fn add(state: Handle, data: &[u8]) -> Answer {
    let known = driver()?.objects.linkers.get(state, ERROR_INVALID_HANDLE)?;
    if data.is_empty() {
        return Err(ERROR_INVALID_VALUE);
    }
    let mut bytes = known.0.lock();
    if std::str::from_utf8(data).is_ok() {
        let text = data.strip_suffix(b"\0").unwrap_or(data);
        bytes.extend_from_slice(text);
        bytes.push(b'\n');
    } else if bytes.is_empty() {
        bytes.extend_from_slice(data);
    }
    Ok(())
}

fn add_file(state: Handle, path: &TextIn) -> Answer {
    let data = std::fs::read(path.read()?).map_err(|_| ERROR_FILE_NOT_FOUND)?;
    add(state, &data)
}
