//! Libraries of code (`cuLibraryLoadData`, CUDA 12) are loaded for all contexts; the driver loads
//! them into each context when something of them is first used there. They are charged then, as a
//! module of the same image would be ([`super::module`]), once for each context.
//!
//! A kernel of a library can be launched as it is. So the first launch of each function charges what
//! the driver loads and reserves for it: its library and its local memory
//! ([`super::context_limits`]).

use core::ffi::{c_uint, c_void};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::context_limits::ContextLimits;
use super::module::{self, CodeSource, Modules};
use crate::charges::account::Account;
use crate::driver::call;
use crate::ffi::{Code, Device, Handle, Out, SUCCESS, Text};
use crate::lock::FutexLock;
use crate::process::{self, PerProcess, ProcessState};
use crate::ready::READY;
use crate::stream;

type Pointer = *mut c_void;

/// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`: bytes of each thread.
const LOCAL_SIZE: c_uint = 3;

/// There is, or was, a library that takes device memory.
static ANY_CHARGED: AtomicBool = AtomicBool::new(false);

/// The libraries of this process that take device memory.
#[derive(Debug, Default)]
pub(crate) struct Libraries(FutexLock<LibraryState>);

#[derive(Debug, Default)]
struct LibraryState {
    libraries: HashMap<Handle, Library>,
    /// The library of each kernel handle that the program has, also of those that take no memory.
    kernels: HashMap<Handle, Handle>,
}

#[derive(Debug)]
struct Library {
    bytes: u64,
    /// The charged account, by context.
    charged: HashMap<Handle, Account>,
}

impl Library {
    /// Whether it is charged in every context.
    fn is_charged_everywhere(&self, process: &ProcessState) -> bool {
        let contexts = &process.contexts;
        !self.charged.is_empty() && contexts.all_owners(|one| self.charged.contains_key(&one))
    }
}

impl Libraries {
    pub(crate) fn of(process: &ProcessState) -> &'static Self {
        static LIBRARIES: PerProcess<Libraries> = PerProcess::new();
        LIBRARIES.of(process)
    }

    /// The library of a kernel; `None` for a function of a module.
    fn library_of(&self, kernel: Handle) -> Option<Handle> {
        self.0.lock().kernels.get(&kernel).copied()
    }

    /// A context ends; what was charged ends with it.
    pub(crate) fn forget(&self, context: Handle) {
        for library in self.0.lock().libraries.values_mut() {
            library.charged.remove(&context);
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(crate) fn load<T: CodeSource>(
    real: extern "C" fn(Out<Handle>, T, Pointer, Pointer, c_uint, Pointer, Pointer, c_uint) -> Code,
    library: Out<Handle>,
    source: T,
    options: Pointer,
    values: Pointer,
    count: c_uint,
    own: Pointer,
    own_values: Pointer,
    own_count: c_uint,
) -> Code {
    load_charged(library, source, || {
        real(
            library, source, options, values, count, own, own_values, own_count,
        )
    })
}

/// Records what a library takes; a driver that loads everything at once loads it now.
fn load_charged(
    library: Out<Handle>,
    source: impl CodeSource,
    call: impl FnOnce() -> Code,
) -> Code {
    let Some(process) = process::limited() else {
        return call();
    };
    let bytes = source.size();
    if bytes == 0 {
        return call();
    }
    let mut charged = HashMap::new();
    if !module::is_lazy() {
        match Account::of_current() {
            Ok(Some(account)) => {
                if let Err(code) = Modules::of(process).charge(account, bytes) {
                    return code;
                }
                charged.insert(account.context, account);
            }
            Ok(None) => {}
            Err(code) => return code,
        }
    }
    let code = call();
    let known = Library { bytes, charged };
    match (code, library.get()) {
        (SUCCESS, Some(made)) => {
            ANY_CHARGED.store(true, Relaxed);
            Libraries::of(process)
                .0
                .lock()
                .libraries
                .insert(made, known);
        }
        _ => release(process, known),
    }
    code
}

fn release(process: &ProcessState, library: Library) {
    for account in library.charged.into_values() {
        Modules::of(process).give_back(account, library.bytes);
    }
}

pub(crate) fn unload(real: extern "C" fn(Handle) -> Code, library: Handle) -> Code {
    let Some(process) = process::limited() else {
        return real(library);
    };
    // Before the driver call: afterwards the handle may belong to another.
    let mut state = Libraries::of(process).0.lock();
    let gone = state.libraries.remove(&library);
    let kernels = state.kernels.extract_if(|_, of| *of == library);
    let kernels: Vec<(Handle, Handle)> = kernels.collect();
    drop(state);
    let code = real(library);
    if code == SUCCESS {
        READY.invalidate();
        if let Some(gone) = gone {
            release(process, gone);
        }
    } else {
        let mut state = Libraries::of(process).0.lock();
        state.libraries.extend(gone.map(|gone| (library, gone)));
        state.kernels.extend(kernels);
    }
    code
}

/// Records the library of these kernels.
fn record_kernels(library: Handle, code: Code, kernels: impl Iterator<Item = Handle>) -> Code {
    if let Some(process) = process::limited().filter(|_| code == SUCCESS) {
        let mut state = Libraries::of(process).0.lock();
        for kernel in kernels {
            if state.kernels.insert(kernel, library) != Some(library) {
                READY.remove(kernel);
            }
        }
    }
    code
}

pub(crate) fn kernel(
    real: extern "C" fn(Out<Handle>, Handle, Text) -> Code,
    kernel: Out<Handle>,
    library: Handle,
    name: Text,
) -> Code {
    record_kernels(
        library,
        real(kernel, library, name),
        kernel.get().into_iter(),
    )
}

pub(crate) fn kernels(
    real: extern "C" fn(Out<Handle>, c_uint, Handle) -> Code,
    list: Out<Handle>,
    count: c_uint,
    library: Handle,
) -> Code {
    let code = real(list, count, library);
    let entries = 0..usize::try_from(count).unwrap_or(0);
    record_kernels(
        library,
        code,
        entries.filter_map(|entry| list.get_at(entry)),
    )
}

/// Charges a library in a context if it takes memory and was not used there before; true if nothing
/// remains to be charged for it in any context.
fn charge_use(
    process: &ProcessState,
    library: Handle,
    account: impl FnOnce() -> Result<Option<Account>, Code>,
) -> Result<bool, Code> {
    let state = Libraries::of(process).0.lock();
    let known = state.libraries.get(&library);
    if known.is_none_or(|known| known.is_charged_everywhere(process)) {
        return Ok(true);
    }
    drop(state);
    let Some(account) = account()? else {
        return Ok(false);
    };
    let mut state = Libraries::of(process).0.lock();
    let Some(known) = state.libraries.get_mut(&library) else {
        return Ok(true);
    };
    if let Entry::Vacant(entry) = known.charged.entry(account.context) {
        Modules::of(process).charge(account, known.bytes)?;
        entry.insert(account);
    }
    Ok(known.is_charged_everywhere(process))
}

/// Charges what the driver loads when this library is used.
fn with_library(library: Handle, call: impl FnOnce() -> Code) -> Code {
    let process = process::get().filter(|_| ANY_CHARGED.load(Relaxed));
    match process.map(|process| charge_use(process, library, Account::of_current)) {
        Some(Err(code)) => code,
        _ => call(),
    }
}

/// Charges what the driver loads and reserves when this function, or kernel of a library, is
/// launched for the first time in the context of a stream.
#[inline]
pub(crate) fn ensure_ready(function: Handle, stream: Handle) -> Result<(), Code> {
    if READY.contains(function) {
        return Ok(());
    }
    ensure_charged(function, || Account::of_stream(stream))
}

/// The same for a kernel node of a graph; `context` is 0 for the current one.
pub(crate) fn ensure_node_ready(function: Handle, context: Handle) -> Result<(), Code> {
    if READY.contains(function) {
        return Ok(());
    }
    ensure_charged(function, || match context {
        0 => Account::of_stream(0),
        context => Account::of_context_and_device(context),
    })
}

#[cold]
fn ensure_charged(
    function: Handle,
    account: impl Fn() -> Result<Option<(Account, Device)>, Code>,
) -> Result<(), Code> {
    let Some(process) = process::get() else {
        return Ok(());
    };
    let generation = READY.generation();
    if !process.is_uncontrolled() {
        let library = Libraries::of(process).library_of(function);
        let charge = || match library {
            Some(library) => charge_kernel(process, library, function, &account),
            None => charge_function(process, function, &account),
        };
        let is_ready = if stream::any_captured() {
            stream::with_relaxed_capture(charge)?
        } else {
            charge()?
        };
        if !is_ready {
            return Ok(());
        }
    }
    READY.add(function, generation);
    Ok(())
}

/// Charges the local memory of a function, which belongs to one context; false if that is not known.
fn charge_function(
    process: &ProcessState,
    function: Handle,
    account: impl Fn() -> Result<Option<(Account, Device)>, Code>,
) -> Result<bool, Code> {
    let bytes = local_memory(|bytes| call::cuFuncGetAttribute(bytes, LOCAL_SIZE, function));
    if bytes == 0 {
        return Ok(true);
    }
    let Some((account, device)) = account()? else {
        return Ok(false);
    };
    let limits = ContextLimits::of(process);
    limits.charge_local_memory(account, device, bytes)?;
    Ok(true)
}

/// Charges a kernel's library and its local memory in a context; true if nothing remains to be
/// charged for it in any context.
fn charge_kernel(
    process: &ProcessState,
    library: Handle,
    kernel: Handle,
    account: impl Fn() -> Result<Option<(Account, Device)>, Code>,
) -> Result<bool, Code> {
    let context = || account().map(|found| Some(found?.0));
    let is_loaded = charge_use(process, library, context)?;
    let Some((account, device)) = account()? else {
        return Ok(false);
    };
    let bytes = local_memory(|bytes| call::cuKernelGetAttribute(bytes, LOCAL_SIZE, kernel, device));
    if bytes == 0 {
        return Ok(is_loaded);
    }
    let limits = ContextLimits::of(process);
    limits.charge_local_memory(account, device, bytes)?;
    let charged = limits.contexts_with_local_memory(bytes);
    Ok(is_loaded && process.contexts.all_owners(|one| charged.contains(&one)))
}

/// Bytes of local memory of each thread; what the driver does not say is nothing.
fn local_memory(ask: impl FnOnce(Out<i32>) -> Code) -> u64 {
    let mut bytes = 0;
    let code = ask(Out::to(&mut bytes));
    if code == SUCCESS {
        u64::try_from(bytes).unwrap_or(0)
    } else {
        0
    }
}

pub(crate) fn function(
    real: extern "C" fn(Out<Handle>, Handle) -> Code,
    function: Out<Handle>,
    kernel: Handle,
) -> Code {
    let process = process::get().filter(|_| ANY_CHARGED.load(Relaxed));
    match process.and_then(|process| Libraries::of(process).library_of(kernel)) {
        Some(library) => with_library(library, || real(function, kernel)),
        None => real(function, kernel),
    }
}

pub(crate) fn module_of(
    real: extern "C" fn(Out<Handle>, Handle) -> Code,
    module: Out<Handle>,
    library: Handle,
) -> Code {
    with_library(library, || real(module, library))
}

/// A variable, managed or not.
pub(crate) fn variable(
    real: extern "C" fn(Pointer, Pointer, Handle, Text) -> Code,
    pointer: Pointer,
    bytes: Pointer,
    library: Handle,
    name: Text,
) -> Code {
    with_library(library, || real(pointer, bytes, library, name))
}

pub(crate) fn unified_function(
    real: extern "C" fn(Pointer, Handle, Text) -> Code,
    function: Pointer,
    library: Handle,
    name: Text,
) -> Code {
    with_library(library, || real(function, library, name))
}
