//! Libraries of code (`cuLibraryLoadData`, CUDA 12): loaded for all contexts; the driver puts them into
//! each when something of them is first used there. What a module of the same image would be charged
//! ([`crate::module`]) is charged then.
//!
//! A kernel of a library can be launched as it is: so launches look, once there is a library that
//! takes something. Fed by: [`crate::table`], [`crate::launch`].
//! Must not: charge a library twice in one context, or for longer than it or the context lives.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::account::Account;
use crate::ffi::{Code, Handle, Image, Out, SUCCESS, Text};
use crate::lock::Lock;
use crate::module;
use crate::process::{self, Process};
use crate::view;

mod ready;
use ready::Ready;

type Pointer = *mut c_void;

/// There is, or was, a library that takes something.
static ANY: AtomicBool = AtomicBool::new(false);

/// The libraries of this process that take something of a card.
#[derive(Debug, Default)]
pub(crate) struct Libraries {
    state: Lock<State>,
    ready: Ready,
}

#[derive(Debug, Default)]
struct State {
    libraries: HashMap<Handle, Library>,
    /// The library of each kernel that was given out.
    kernels: HashMap<Handle, Handle>,
}

#[derive(Debug)]
struct Library {
    bytes: u64,
    /// By context.
    charged: HashMap<Handle, Account>,
}

impl Library {
    /// It is charged in every context that there is.
    fn is_everywhere(&self, process: &Process) -> bool {
        let contexts = &process.contexts;
        !self.charged.is_empty() && contexts.all_are(|one| self.charged.contains_key(&one))
    }
}

impl Libraries {
    /// There is a context in which nothing was used yet.
    pub(crate) fn forget_ready(&self) {
        self.ready.forget();
    }

    /// A context ends; what was charged ends with it.
    pub(crate) fn forget(&self, context: Handle) {
        for library in self.state.lock().libraries.values_mut() {
            library.charged.remove(&context);
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(crate) fn load_data(
    real: extern "C" fn(
        Out<Handle>,
        Image,
        Pointer,
        Pointer,
        c_uint,
        Pointer,
        Pointer,
        c_uint,
    ) -> Code,
    library: Out<Handle>,
    image: Image,
    options: Pointer,
    values: Pointer,
    count: c_uint,
    own: Pointer,
    own_values: Pointer,
    own_count: c_uint,
) -> Code {
    let size = || module::size(image.bytes());
    loaded(library, size, || {
        real(
            library, image, options, values, count, own, own_values, own_count,
        )
    })
}

#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(crate) fn load_file(
    real: extern "C" fn(
        Out<Handle>,
        Text,
        Pointer,
        Pointer,
        c_uint,
        Pointer,
        Pointer,
        c_uint,
    ) -> Code,
    library: Out<Handle>,
    path: Text,
    options: Pointer,
    values: Pointer,
    count: c_uint,
    own: Pointer,
    own_values: Pointer,
    own_count: c_uint,
) -> Code {
    loaded(
        library,
        || module::size_of_file(path),
        || {
            real(
                library, path, options, values, count, own, own_values, own_count,
            )
        },
    )
}

/// Notes what a library takes; a driver that loads everything at once has it now.
fn loaded(library: Out<Handle>, size: impl FnOnce() -> u64, call: impl FnOnce() -> Code) -> Code {
    let Some(process) = view::limited() else {
        return call();
    };
    let bytes = size();
    if bytes == 0 {
        return call();
    }
    let mut charged = HashMap::new();
    if !module::is_lazy() {
        match Account::of_current() {
            Ok(Some(account)) => {
                if let Err(code) = process.modules.charge(account, bytes) {
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
            ANY.store(true, Relaxed);
            process.libraries.state.lock().libraries.insert(made, known);
        }
        _ => end(process, known),
    }
    code
}

fn end(process: &Process, library: Library) {
    for account in library.charged.into_values() {
        process.modules.give_back(account, library.bytes);
    }
}

pub(crate) fn unload(real: extern "C" fn(Handle) -> Code, library: Handle) -> Code {
    let Some(process) = process::get().filter(|_| ANY.load(Relaxed)) else {
        return real(library);
    };
    // Before the driver is asked: afterwards the handle may be another's.
    let mut state = process.libraries.state.lock();
    let gone = state.libraries.remove(&library);
    let kernels = state.kernels.extract_if(|_, of| *of == library);
    let kernels: Vec<(Handle, Handle)> = kernels.collect();
    drop(state);
    let code = real(library);
    let Some(gone) = gone else { return code };
    if code == SUCCESS {
        end(process, gone);
    } else {
        let mut state = process.libraries.state.lock();
        state.libraries.insert(library, gone);
        state.kernels.extend(kernels);
    }
    code
}

/// Notes whose these kernels are.
fn given(library: Handle, code: Code, kernels: impl Iterator<Item = Handle>) -> Code {
    let process = process::get().filter(|_| code == SUCCESS && ANY.load(Relaxed));
    if let Some(process) = process {
        let mut state = process.libraries.state.lock();
        if state.libraries.contains_key(&library) {
            let added = kernels.filter(|kernel| {
                let before = state.kernels.insert(*kernel, library);
                before != Some(library)
            });
            if added.count() > 0 {
                process.libraries.ready.forget();
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
    given(
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
    let places = 0..usize::try_from(count).unwrap_or(0);
    given(library, code, places.filter_map(|place| list.get_at(place)))
}

/// Charges a library in a context, if it takes something and was not used there; true: nothing is
/// left to be charged for it in any context.
fn used(
    process: &Process,
    library: Handle,
    account: impl FnOnce() -> Result<Option<Account>, Code>,
) -> Result<bool, Code> {
    let state = process.libraries.state.lock();
    let known = state.libraries.get(&library);
    if known.is_none_or(|known| known.is_everywhere(process)) {
        return Ok(true);
    }
    drop(state);
    let Some(account) = account()? else {
        return Ok(false);
    };
    let mut state = process.libraries.state.lock();
    let Some(known) = state.libraries.get_mut(&library) else {
        return Ok(true);
    };
    if let Entry::Vacant(place) = known.charged.entry(account.context) {
        process.modules.charge(account, known.bytes)?;
        place.insert(account);
    }
    Ok(known.is_everywhere(process))
}

/// Makes room for what the driver loads when this library is used.
fn in_library(library: Handle, call: impl FnOnce() -> Code) -> Code {
    let process = process::get().filter(|_| ANY.load(Relaxed));
    match process.map(|process| used(process, library, Account::of_current)) {
        Some(Err(code)) => code,
        _ => call(),
    }
}

/// Makes room for what the driver loads when this function is launched, if it is a kernel of a
/// library.
#[inline]
pub(crate) fn ready(function: Handle, stream: Handle) -> Result<(), Code> {
    if ANY.load(Relaxed) {
        made_ready(function, stream)
    } else {
        Ok(())
    }
}

fn made_ready(kernel: Handle, stream: Handle) -> Result<(), Code> {
    let Some(process) = process::get() else {
        return Ok(());
    };
    let ready = &process.libraries.ready;
    if ready.has(kernel) {
        return Ok(());
    }
    made_ready_first(process, kernel, stream)
}

#[cold]
fn made_ready_first(process: &Process, kernel: Handle, stream: Handle) -> Result<(), Code> {
    let libraries = &process.libraries;
    let round = libraries.ready.round();
    let of = libraries.state.lock().kernels.get(&kernel).copied();
    let account = || Account::of_stream(stream).map(|found| Some(found?.0));
    if of.map_or(Ok(true), |library| used(process, library, account))? {
        libraries.ready.add(kernel, round);
    }
    Ok(())
}

pub(crate) fn function(
    real: extern "C" fn(Out<Handle>, Handle) -> Code,
    function: Out<Handle>,
    kernel: Handle,
) -> Code {
    match ready(kernel, 0) {
        Ok(()) => real(function, kernel),
        Err(code) => code,
    }
}

pub(crate) fn module_of(
    real: extern "C" fn(Out<Handle>, Handle) -> Code,
    module: Out<Handle>,
    library: Handle,
) -> Code {
    in_library(library, || real(module, library))
}

/// A variable, managed or not.
pub(crate) fn variable(
    real: extern "C" fn(Pointer, Pointer, Handle, Text) -> Code,
    pointer: Pointer,
    bytes: Pointer,
    library: Handle,
    name: Text,
) -> Code {
    in_library(library, || real(pointer, bytes, library, name))
}

pub(crate) fn unified(
    real: extern "C" fn(Pointer, Handle, Text) -> Code,
    function: Pointer,
    library: Handle,
    name: Text,
) -> Code {
    in_library(library, || real(function, library, name))
}
