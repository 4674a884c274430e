//! Libraries of code (CUDA 12). A library is loaded into a context when one of its functions is
//! first used there, or at once if `CUDA_MODULE_LOADING` is `EAGER`. A kernel of a library can be
//! launched as it is. A library is loaded as one piece; real drivers load its functions one by one.

use std::collections::HashMap;
use std::ffi::c_void;

use parking_lot::Mutex;

use crate::calls::calls;
use crate::codes::{ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE, ERROR_NOT_FOUND};
use crate::context::{ContextRef, current, top};
use crate::driver::driver;
use crate::exports::module;
use crate::ffi::{Answer, Out, TextIn};
use crate::types::{Device, DevicePointer, Handle};

pub(crate) struct Library {
    pub(super) image: Vec<u8>,
    /// Its module in each context.
    modules: Mutex<HashMap<Handle, Handle>>,
}

/// A kernel of a library, of no context.
pub(crate) struct Kernel {
    pub(super) library: Handle,
    name: String,
    /// Its function in each context.
    functions: Mutex<HashMap<Handle, Handle>>,
}

calls! { CALLS:
    cuLibraryLoadData 12000 cuLibraryLoadData(
        library: Out<Handle>, image: *const c_void, _options: *const u32,
        _values: *const *mut c_void, _count: u32, _library_options: *const u32,
        _library_values: *const *mut c_void, _library_count: u32,
    ) {
        driver()?;
        load(&library, module::image_at(image)?)
    }

    cuLibraryUnload 12000 cuLibraryUnload(library: Handle) {
        let objects = &driver()?.objects;
        let gone = objects.libraries.remove(library)?;
        objects.kernels.drain(|kernel| kernel.library == library);
        for module in gone.modules.lock().values() {
            // Its context may be destroyed, and the module with it.
            let _ = module::end(*module);
        }
        Ok(())
    }

    cuLibraryGetModule 12000 cuLibraryGetModule(module: Out<Handle>, library: Handle) {
        module.put(module_in(library, current()?)?)
    }

    cuLibraryGetKernel 12000 cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: TextIn) {
        let objects = &driver()?.objects;
        objects.libraries.get(library)?;
        let name = name.read()?.to_owned();
        kernel.put(objects.kernels.add(Kernel { library, name, functions: Mutex::default() }))
    }

    cuKernelGetFunction 12000 cuKernelGetFunction(function: Out<Handle>, kernel: Handle) {
        let found = function_in(kernel, current()?)?;
        function.put(found.ok_or(ERROR_INVALID_HANDLE)?)
    }

    cuKernelGetAttribute 12000 cuKernelGetAttribute(
        value: Out<i32>, attribute: u32, kernel: Handle, device: Device,
    ) {
        let driver = driver()?;
        driver.gpu_index(device)?;
        let known = driver.objects.kernels.get(kernel)?;
        value.put(module::attribute_of(module::local_bytes(&known.name), attribute)?)
    }

    cuLibraryGetGlobal 12000 cuLibraryGetGlobal(
        _pointer: Out<DevicePointer>, _bytes: Out<usize>, library: Handle, name: TextIn,
    ) {
        name.read()?;
        module_in(library, current()?)?;
        Err(ERROR_NOT_FOUND)
    }
}

/// `CUDA_MODULE_LOADING`, as it is at the process's start.
pub(crate) fn is_eager() -> bool {
    std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER")
}

fn load(out: &Out<Handle>, image: Vec<u8>) -> Answer {
    if out.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    let objects = &driver()?.objects;
    let library = objects.libraries.add(Library {
        image,
        modules: Mutex::default(),
    });
    if let Some(context) = top().filter(|_| is_eager())
        && let Err(code) = module_in(library, context)
    {
        let _ = objects.libraries.remove(library);
        return Err(code);
    }
    out.put(library)
}

/// The module of a library in a context, which is loaded now if it was not.
fn module_in(library: Handle, context: ContextRef) -> Answer<Handle> {
    let objects = &driver()?.objects;
    let known = objects.libraries.get(library)?;
    let mut modules = known.modules.lock();
    let key = context.owner().handle();
    // A context that was reset has its name still, and none of its modules.
    let lives = |module: &&Handle| objects.modules.get(**module).is_ok();
    if let Some(module) = modules.get(&key).filter(lives) {
        return Ok(*module);
    }
    let module = module::load_into(context, &known.image, true)?;
    modules.insert(key, module);
    Ok(module)
}

/// The function of a kernel in a context; `None`: this is no kernel.
pub(crate) fn function_in(kernel: Handle, context: ContextRef) -> Answer<Option<Handle>> {
    let objects = &driver()?.objects;
    let Ok(kernel) = objects.kernels.get(kernel) else {
        return Ok(None);
    };
    let mut functions = kernel.functions.lock();
    let key = context.owner().handle();
    let lives = |function: &&Handle| objects.functions.get(**function).is_ok();
    if let Some(function) = functions.get(&key).filter(lives) {
        return Ok(Some(*function));
    }
    let module = module_in(kernel.library, context)?;
    let function = module::function(module, &kernel.name)?;
    functions.insert(key, function);
    Ok(Some(function))
}
