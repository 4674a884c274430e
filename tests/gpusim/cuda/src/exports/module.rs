//! Modules and their functions. An image of text is PTX and has the functions that its `.entry`
//! lines name; any other image has a function of every name. A function uses the local memory in
//! its name: `k_us_5_local_800` 800 bytes a thread.

use std::collections::HashSet;
use std::ffi::c_void;

use crate::calls::calls;
use crate::codes::{
    ERROR_FILE_NOT_FOUND, ERROR_INVALID_IMAGE, ERROR_INVALID_VALUE, ERROR_NOT_FOUND,
    ERROR_NOT_PERMITTED,
};
use crate::context::{ContextRef, current};
use crate::driver::driver;
use crate::exports::library;
use crate::ffi::{Answer, Out, TextIn};
use crate::image;
use crate::times::KernelTime;
use crate::types::Handle;

pub(crate) struct Module {
    pub(crate) context: ContextRef,
    /// The functions of a PTX image; `None`: any.
    entries: Option<HashSet<String>>,
    /// Its GPU memory.
    bytes: u64,
    of_library: bool,
}

/// A kernel.
pub(crate) struct Function {
    pub(crate) context: ContextRef,
    pub(crate) time: KernelTime,
    /// Bytes of local memory of a thread.
    pub(crate) local_bytes: u32,
    pub(crate) module: Handle,
}

calls! { CALLS:
    cuModuleLoad 2000 cuModuleLoad(module: Out<Handle>, path: TextIn) {
        current()?;
        let image = std::fs::read(path.read()?).map_err(|_| ERROR_FILE_NOT_FOUND)?;
        load(&module, &image)
    }

    cuModuleLoadData 2000 cuModuleLoadData(module: Out<Handle>, image: *const c_void) {
        load_pointer(&module, image)
    }

    cuModuleLoadDataEx 2010 cuModuleLoadDataEx(
        module: Out<Handle>, image: *const c_void, _count: u32, _options: *const u32,
        _values: *const *mut c_void,
    ) {
        load_pointer(&module, image)
    }

    cuModuleLoadFatBinary 2000 cuModuleLoadFatBinary(module: Out<Handle>, image: *const c_void) {
        load_pointer(&module, image)
    }

    cuModuleUnload 2000 cuModuleUnload(module: Handle) {
        current()?;
        if driver()?.objects.modules.get(module)?.of_library {
            return Err(ERROR_NOT_PERMITTED);
        }
        end(module)
    }

    cuModuleGetLoadingMode 11070 cuModuleGetLoadingMode(mode: Out<u32>) {
        driver()?;
        mode.put(if library::is_eager() { 1 } else { 2 })
    }

    cuModuleGetFunction 2000 cuModuleGetFunction(out: Out<Handle>, module: Handle, name: TextIn) {
        current()?;
        out.put(function(module, name.read()?)?)
    }

    cuFuncGetAttribute 2020 cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: Handle) {
        let known = driver()?.objects.functions.get(function)?;
        value.put(attribute_of(known.local_bytes, attribute)?)
    }

    cuFuncSetAttribute 9000 cuFuncSetAttribute(function: Handle, _attribute: u32, _value: i32) {
        driver()?.objects.functions.get(function).map(|_| ())
    }

    cuFuncSetCacheConfig 3000 cuFuncSetCacheConfig(function: Handle, _config: u32) {
        driver()?.objects.functions.get(function).map(|_| ())
    }
}

/// Longest PTX that is searched.
const MOST_TEXT: usize = 1 << 20;

/// A `CUfunction_attribute` of a kernel with so much local memory.
pub(crate) fn attribute_of(local_bytes: u32, attribute: u32) -> Answer<i32> {
    Ok(match attribute {
        0 => 1024,
        3 => local_bytes.cast_signed(),
        4 => 32,
        5 | 6 => 80,
        1 | 2 | 7..=15 => 0,
        _ => return Err(ERROR_INVALID_VALUE),
    })
}

/// Most local memory of a thread, in bytes.
const MOST_LOCAL: u32 = 512 << 10;

/// The local memory of a thread of a kernel, in bytes.
pub(crate) fn local_bytes(name: &str) -> u32 {
    let mut words = name.split('_').skip_while(|word| *word != "local");
    let bytes = words.nth(1).and_then(|bytes| bytes.parse().ok());
    bytes.unwrap_or(0).min(MOST_LOCAL)
}

pub(crate) fn function(module: Handle, name: &str) -> Answer<Handle> {
    let objects = &driver()?.objects;
    let known = objects.modules.get(module)?;
    let missing = known
        .entries
        .as_ref()
        .is_some_and(|entries| !entries.contains(name));
    if missing || name.is_empty() {
        return Err(ERROR_NOT_FOUND);
    }
    Ok(objects.functions.add(Function {
        context: known.context,
        time: KernelTime::of(name),
        local_bytes: local_bytes(name),
        module,
    }))
}

pub(crate) fn end(module: Handle) -> Answer {
    let objects = &driver()?.objects;
    let gone = objects.modules.remove(module)?;
    add_code(gone.context, |code| code.saturating_sub(gone.bytes))?;
    objects
        .functions
        .drain(|function| function.module == module);
    Ok(())
}

pub(crate) fn image_at(image: *const c_void) -> Answer<Vec<u8>> {
    let place = Out::at(image.cast_mut().cast::<u8>());
    if let Ok(Some(magic)) = place.get_all(4).as_deref().map(image::word) {
        if magic == image::WRAPPER {
            // Version, and then where the fat binary is.
            let within = Out::at(
                image
                    .wrapping_byte_add(8)
                    .cast_mut()
                    .cast::<*const c_void>(),
            );
            return image_at(within.get()?);
        }
        if magic == image::FAT {
            let length = image::length_of_fat(&place.get_all(16)?).ok_or(ERROR_INVALID_IMAGE)?;
            return image::binary_of_fat(&place.get_all(length)?).ok_or(ERROR_INVALID_IMAGE);
        }
    }
    if let Ok(b"\x7fELF") = place.get_all(4).as_deref() {
        let length = image::length_of_elf(&place.get_all(64)?).ok_or(ERROR_INVALID_IMAGE)?;
        return place.get_all(length);
    }
    let mut text = Vec::new();
    // Up to the closing zero of PTX; a binary image has zeroes early.
    while text.len() < MOST_TEXT {
        let byte = Out::at(image.cast_mut().cast::<u8>().wrapping_add(text.len())).get()?;
        if byte == 0 {
            break;
        }
        text.push(byte);
    }
    if place.is_null() || text.is_empty() {
        return Err(ERROR_INVALID_IMAGE);
    }
    Ok(text)
}

fn load_pointer(out: &Out<Handle>, image: *const c_void) -> Answer {
    current()?;
    load(out, &image_at(image)?)
}

fn load(out: &Out<Handle>, image: &[u8]) -> Answer {
    let context = current()?;
    if out.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    out.put(load_into(context, image, false)?)
}

/// A new module of a context.
pub(crate) fn load_into(context: ContextRef, image: &[u8], of_library: bool) -> Answer<Handle> {
    let bytes = image::size(image);
    let context = context.owner();
    add_code(context, |code| code.saturating_add(bytes))?;
    Ok(driver()?.objects.modules.add(Module {
        context,
        entries: entries(image),
        bytes,
        of_library,
    }))
}

/// Bytes of code that fit in every context.
const CODE: u64 = 2 << 20;

/// The code of a context lies together; the context grows when it does not fit.
fn add_code(context: ContextRef, change: impl FnOnce(u64) -> u64) -> Answer {
    let mut code = context.code.lock();
    let (old, new) = (*code, change(*code));
    let beside = |code: u64| code.saturating_sub(CODE);
    context.resize(driver()?, beside(old), beside(new))?;
    *code = new;
    Ok(())
}

/// The names of `.entry` lines, if the image is PTX.
fn entries(image: &[u8]) -> Option<HashSet<String>> {
    let text = std::str::from_utf8(image).ok()?;
    if !text.contains(".version") {
        return None;
    }
    let names = text.split(".entry").skip(1).map(|rest| {
        let name = rest.trim_start();
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && !"_$%".contains(c));
        name[..end.unwrap_or(name.len())].to_owned()
    });
    Some(names.collect())
}
