//! Modules: their code and variables are in device memory. What an image says about itself is
//! charged before it is loaded. A context initially has room for a little code, which its own
//! charge covers; beyond that it grows in whole blocks. No charge outlives its context.
//!
//! A fat binary has code for many devices. Since CUDA 11.7 it is loaded piece by piece when its
//! kernels are first used, so it is charged only where the driver loads everything at once. What is
//! not charged here is measured by the host.

use core::ffi::{c_uint, c_void};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use crate::charges::account::Account;
use crate::charges::allocations::in_blocks;
use crate::driver::call;
use crate::ffi::{Code, Handle, Image, Out, SUCCESS, Text};
use crate::image;
use crate::lock::FutexLock;
use crate::process::{self, PerProcess, ProcessState};
use crate::ready::READY;

/// Bytes of code that a context's own charge covers.
const COVERED_BY_CONTEXT: u64 = 2 << 20;
/// `CU_MODULE_LAZY_LOADING`.
const LAZY: c_uint = 2;

/// The modules of this process, and the bytes of code in each context.
#[derive(Debug, Default)]
pub(crate) struct Modules(FutexLock<ModuleState>);

#[derive(Debug, Default)]
struct ModuleState {
    modules: HashMap<Handle, (Account, u64)>,
    code: HashMap<Handle, u64>,
}

impl Modules {
    pub(crate) fn of(process: &ProcessState) -> &'static Self {
        static MODULES: PerProcess<Modules> = PerProcess::new();
        MODULES.of(process)
    }

    /// Charges code that a library has in the account's context, if there is room.
    pub(crate) fn charge(&self, account: Account, bytes: u64) -> Result<(), Code> {
        self.0.lock().add(account, bytes)
    }

    /// Undoes [`Self::charge`].
    pub(crate) fn give_back(&self, account: Account, bytes: u64) {
        self.0.lock().remove(account, bytes);
    }

    /// A context ends; what was charged ends with it.
    pub(crate) fn forget(&self, context: Handle) {
        let mut state = self.0.lock();
        state.code.remove(&context);
        state
            .modules
            .retain(|_, (account, _)| account.context != context);
    }
}

/// What a context is charged for so much code.
fn charge_of(code: u64) -> u64 {
    in_blocks(code.saturating_sub(COVERED_BY_CONTEXT)).unwrap_or(u64::MAX)
}

impl ModuleState {
    /// Charges more code, if there is room.
    fn add(&mut self, account: Account, bytes: u64) -> Result<(), Code> {
        let code = self.code.entry(account.context).or_default();
        let (old, new) = (charge_of(*code), charge_of(code.saturating_add(bytes)));
        if new > old {
            account.reserve("a module", new - old)?;
        }
        *code = code.saturating_add(bytes);
        let contexts = &account.process.contexts;
        contexts.resize(&account.process.slot, account.context, old, new);
        Ok(())
    }

    fn remove(&mut self, account: Account, bytes: u64) {
        let Some(code) = self.code.get_mut(&account.context) else {
            return;
        };
        let (old, new) = (charge_of(*code), charge_of(code.saturating_sub(bytes)));
        *code = code.saturating_sub(bytes);
        account.release(old - new);
        let contexts = &account.process.contexts;
        contexts.resize(&account.process.slot, account.context, old, new);
    }
}

/// Where code is loaded from.
pub(crate) trait CodeSource: Copy {
    /// Device memory that the code takes, in bytes, as far as it is loaded at once.
    fn size(self) -> u64;
}

impl CodeSource for Image {
    fn size(self) -> u64 {
        size(self.bytes())
    }
}

/// The path of a file.
impl CodeSource for Text {
    fn size(self) -> u64 {
        let image = std::fs::read(OsStr::from_bytes(self.bytes()));
        // The driver will report what is wrong with the file.
        image.map_or(0, |image| size(&image))
    }
}

fn size(image: &[u8]) -> u64 {
    if image::is_fat(image) && is_lazy() {
        return 0;
    }
    image::size(image)
}

pub(crate) fn load<T: CodeSource>(
    real: extern "C" fn(Out<Handle>, T) -> Code,
    module: Out<Handle>,
    source: T,
) -> Code {
    load_charged(module, source, || real(module, source))
}

pub(crate) fn load_data_ex(
    real: extern "C" fn(Out<Handle>, Image, c_uint, *mut c_void, *mut c_void) -> Code,
    module: Out<Handle>,
    image: Image,
    count: c_uint,
    options: *mut c_void,
    values: *mut c_void,
) -> Code {
    load_charged(module, image, || {
        real(module, image, count, options, values)
    })
}

pub(crate) fn unload(real: extern "C" fn(Handle) -> Code, module: Handle) -> Code {
    let Some(process) = process::get() else {
        return real(module);
    };
    let modules = Modules::of(process);
    // Before the driver call: afterwards the handle may belong to another.
    let known = modules.0.lock().modules.remove(&module);
    let code = real(module);
    if code == SUCCESS {
        // Handles of its functions may be used again.
        READY.invalidate();
    }
    if let Some((account, bytes)) = known {
        let mut state = modules.0.lock();
        if code == SUCCESS {
            state.remove(account, bytes);
        } else {
            state.modules.insert(module, (account, bytes));
        }
    }
    code
}

/// Whether the driver loads functions when they are first used.
pub(crate) fn is_lazy() -> bool {
    let mut mode = 0;
    call::cuModuleGetLoadingMode(Out::to(&mut mode)) == SUCCESS && mode == LAZY
}

fn load_charged(module: Out<Handle>, source: impl CodeSource, call: impl FnOnce() -> Code) -> Code {
    let account = match Account::of_current() {
        Ok(Some(account)) => account,
        Ok(None) => return call(),
        Err(code) => return code,
    };
    let bytes = source.size();
    let modules = Modules::of(account.process);
    let taken = modules.0.lock().add(account, bytes);
    if let Err(code) = taken {
        return code;
    }
    let code = call();
    let mut state = modules.0.lock();
    match (code, module.get()) {
        (SUCCESS, Some(made)) => drop(state.modules.insert(made, (account, bytes))),
        _ => state.remove(account, bytes),
    }
    code
}
