//! Context limits that programs set and that take device memory: stacks of all threads that can run
//! at once, the buffer of `printf`, the heap of kernels. What exceeds the initial value is charged
//! when it is set, and released when it is set lower or the context ends.
//!
//! Local memory of kernels, which registers cannot hold, is charged before the first launch that
//! needs so much. The driver keeps it until the context ends. It is in the same memory as the
//! stacks, so the larger of both is charged.

use core::ffi::c_uint;
use std::collections::HashMap;

use crate::charges::account::Account;
use crate::charges::allocations::in_blocks;
use crate::driver::call;
use crate::ffi::{Code, Device, Handle, OUT_OF_MEMORY, Out, SUCCESS, long};
use crate::lock::FutexLock;
use crate::process::{PerProcess, ProcessState};

/// `CU_LIMIT_STACK_SIZE`: bytes of each thread.
const STACK: c_uint = 0;
/// `CU_LIMIT_PRINTF_FIFO_SIZE` and `CU_LIMIT_MALLOC_HEAP_SIZE`.
const FIFO: c_uint = 1;
const HEAP: c_uint = 2;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` and `..._MAX_THREADS_PER_MULTIPROCESSOR`.
const THREADS: [i32; 2] = [16, 39];

#[derive(Clone, Copy, Debug)]
struct LimitCharge {
    /// The driver's initial value.
    first: u64,
    /// Bytes charged for what exceeds it.
    charged: u64,
}

/// Local memory of the kernels that were launched in a context.
#[derive(Clone, Copy, Debug, Default)]
struct LocalMemory {
    /// The most bytes of a thread.
    of_thread: u64,
    /// Bytes of all threads that can run at once.
    bytes: u64,
}

/// Limits that were set and local memory, by context.
#[derive(Debug, Default)]
pub(crate) struct ContextLimits(FutexLock<ContextCharges>);

#[derive(Debug, Default)]
struct ContextCharges {
    limits: HashMap<(Handle, c_uint), LimitCharge>,
    local: HashMap<Handle, LocalMemory>,
}

impl ContextLimits {
    pub(crate) fn of(process: &ProcessState) -> &'static Self {
        static CONTEXT_LIMITS: PerProcess<ContextLimits> = PerProcess::new();
        CONTEXT_LIMITS.of(process)
    }

    /// A context ends; what was charged ends with it.
    pub(crate) fn forget(&self, context: Handle) {
        let mut charges = self.0.lock();
        charges.limits.retain(|(of, _), _| *of != context);
        charges.local.remove(&context);
    }

    /// Charges the local memory of a kernel that is about to be launched, `of_thread` bytes for each
    /// thread, if there is room.
    pub(crate) fn charge_local_memory(
        &self,
        account: Account,
        device: Device,
        of_thread: u64,
    ) -> Result<(), Code> {
        let Some(threads) = resident_threads(device) else {
            return Ok(());
        };
        let bytes = threads.checked_mul(of_thread).and_then(in_blocks);
        let bytes = bytes.ok_or(OUT_OF_MEMORY)?;
        // Locked meanwhile: two threads may launch it.
        let mut charges = self.0.lock();
        let known = charges.local.get(&account.context).copied();
        let known = known.unwrap_or_default();
        if known.of_thread >= of_thread {
            return Ok(());
        }
        let stacks = charges.limits.get(&(account.context, STACK));
        let stacks = stacks.map_or(0, |stacks| stacks.charged);
        let (before, after) = (known.bytes.max(stacks), bytes.max(stacks));
        if after > before {
            account.reserve("local memory of a kernel", after - before)?;
            let contexts = &account.process.contexts;
            contexts.resize(&account.process.slot, account.context, before, after);
        }
        charges
            .local
            .insert(account.context, LocalMemory { of_thread, bytes });
        Ok(())
    }

    /// The contexts in which kernels with so much local memory can be launched without a charge.
    pub(crate) fn contexts_with_local_memory(&self, of_thread: u64) -> Vec<Handle> {
        let charges = self.0.lock();
        let enough = charges.local.iter();
        let enough = enough.filter(|(_, local)| local.of_thread >= of_thread);
        enough.map(|(context, _)| *context).collect()
    }
}

pub(crate) fn set(real: extern "C" fn(c_uint, usize) -> Code, limit: c_uint, value: usize) -> Code {
    let account = match Account::of_current() {
        Ok(Some(account)) => account,
        Ok(None) => return real(limit, value),
        Err(code) => return code,
    };
    let (Some(bytes_per_value), Some(current)) = (bytes_per_value(limit), current_value(limit))
    else {
        return real(limit, value);
    };
    // Locked across the call: two threads may set the same limit.
    let mut charges = ContextLimits::of(account.process).0.lock();
    let key = (account.context, limit);
    let mut size = *charges.limits.entry(key).or_insert(LimitCharge {
        first: current,
        charged: 0,
    });
    let cost = |value: u64| {
        let more = value
            .saturating_sub(size.first)
            .checked_mul(bytes_per_value)?;
        in_blocks(more)
    };
    let Some(target) = cost(long(value)) else {
        return OUT_OF_MEMORY;
    };
    // Stacks and local memory share what is charged for the larger of both.
    let local = charges.local.get(&account.context);
    let shared = local.filter(|_| limit == STACK);
    let shared = shared.map_or(0, |local| local.bytes);
    let before = size.charged.max(shared);
    let growth = target.saturating_sub(before);
    if growth > 0
        && let Err(code) = account.reserve("cuCtxSetLimit", growth)
    {
        return code;
    }
    let code = real(limit, value);
    if code == SUCCESS {
        // The driver may have rounded the value.
        size.charged = current_value(limit).and_then(cost).unwrap_or(target);
    }
    let after = size.charged.max(shared);
    account.settle(before + growth, after);
    let contexts = &account.process.contexts;
    contexts.resize(&account.process.slot, account.context, before, after);
    charges.limits.insert(key, size);
    code
}

/// Device memory for one of the value; `None`: it takes no device memory.
fn bytes_per_value(limit: c_uint) -> Option<u64> {
    match limit {
        FIFO | HEAP => Some(1),
        STACK => {
            let mut device = 0;
            let code = call::cuCtxGetDevice(Out::to(&mut device));
            (code == SUCCESS).then(|| resident_threads(device))?
        }
        _ => None,
    }
}

/// Threads that can run on a device at once.
fn resident_threads(device: Device) -> Option<u64> {
    let numbers = THREADS.map(|attribute| {
        let mut number = 0;
        let code = call::cuDeviceGetAttribute(Out::to(&mut number), attribute, device);
        (code == SUCCESS).then(|| u64::try_from(number).unwrap_or(0))
    });
    let [processors, threads] = numbers;
    processors?.checked_mul(threads?)
}

fn current_value(limit: c_uint) -> Option<u64> {
    let mut value = 0;
    let code = call::cuCtxGetLimit(Out::to(&mut value), limit);
    (code == SUCCESS).then(|| long(value))
}
