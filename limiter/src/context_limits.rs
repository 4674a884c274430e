//! Context limits that programs set and that take device memory: stacks of all threads that can run
//! at once, the buffer of `printf`, the heap of kernels. What exceeds the initial value is charged
//! when it is set, and released when it is set lower or the context ends.

use core::ffi::c_uint;
use std::collections::HashMap;

use crate::account::Account;
use crate::allocations::in_blocks;
use crate::ffi::{Code, Handle, OUT_OF_MEMORY, Out, SUCCESS, long};
use crate::lock::FutexLock;
use crate::table::call;

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

/// Limits that were set, by context.
#[derive(Debug, Default)]
pub(crate) struct ContextLimits(FutexLock<HashMap<(Handle, c_uint), LimitCharge>>);

impl ContextLimits {
    /// A context ends; what was charged ends with it.
    pub(crate) fn forget(&self, context: Handle) {
        self.0.lock().retain(|(of, _), _| *of != context);
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
    let mut context_limits = account.process.context_limits.0.lock();
    let key = (account.context, limit);
    let mut size = *context_limits.entry(key).or_insert(LimitCharge {
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
    let growth = target.saturating_sub(size.charged);
    if growth > 0
        && let Err(code) = account.reserve("cuCtxSetLimit", growth)
    {
        return code;
    }
    let code = real(limit, value);
    let before = size.charged;
    if code == SUCCESS {
        // The driver may have rounded the value.
        size.charged = current_value(limit).and_then(cost).unwrap_or(target);
    }
    account.settle(before + growth, size.charged);
    let contexts = &account.process.contexts;
    contexts.resize(account.process, account.context, before, size.charged);
    context_limits.insert(key, size);
    code
}

/// Device memory for one of the value; `None`: it takes no device memory.
fn bytes_per_value(limit: c_uint) -> Option<u64> {
    match limit {
        FIFO | HEAP => Some(1),
        STACK => {
            let mut device = 0;
            if call::cuCtxGetDevice(Out::to(&mut device)) != SUCCESS {
                return None;
            }
            let numbers = THREADS.map(|attribute| {
                let mut number = 0;
                let code = call::cuDeviceGetAttribute(Out::to(&mut number), attribute, device);
                (code == SUCCESS).then(|| u64::try_from(number).unwrap_or(0))
            });
            let [processors, threads] = numbers;
            processors?.checked_mul(threads?)
        }
        _ => None,
    }
}

fn current_value(limit: c_uint) -> Option<u64> {
    let mut value = 0;
    let code = call::cuCtxGetLimit(Out::to(&mut value), limit);
    (code == SUCCESS).then(|| long(value))
}
