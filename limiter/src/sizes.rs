//! What contexts grow by when a program sets their limits: stacks of all threads that can run at
//! once, the buffer of `printf`, the heap of kernels. What is more than at first is charged when it
//! is set, and given back when it is set lower or the context ends.
//!
//! Fed by: [`crate::table`]. Must not: charge what a context has from its beginning.

use core::ffi::c_uint;
use std::collections::HashMap;

use crate::account::Account;
use crate::ffi::{Code, Handle, OUT_OF_MEMORY, Out, SUCCESS, long};
use crate::ledger::in_blocks;
use crate::lock::Lock;
use crate::table::call;

/// `CU_LIMIT_STACK_SIZE`: bytes of each thread.
const STACK: c_uint = 0;
/// `CU_LIMIT_PRINTF_FIFO_SIZE` and `CU_LIMIT_MALLOC_HEAP_SIZE`.
const FIFO: c_uint = 1;
const HEAP: c_uint = 2;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` and `..._MAX_THREADS_PER_MULTIPROCESSOR`.
const THREADS: [i32; 2] = [16, 39];

#[derive(Clone, Copy, Debug)]
struct Size {
    /// As the driver had it.
    first: u64,
    /// Bytes charged for what is more.
    charged: u64,
}

/// Limits that were set, by context.
#[derive(Debug, Default)]
pub(crate) struct Sizes(Lock<HashMap<(Handle, c_uint), Size>>);

impl Sizes {
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
    let (Some(each), Some(now)) = (each(limit), asked(limit)) else {
        return real(limit, value);
    };
    // Held across the call: two threads may set the same one.
    let mut sizes = account.process.sizes.0.lock();
    let key = (account.context, limit);
    let mut size = *sizes.entry(key).or_insert(Size {
        first: now,
        charged: 0,
    });
    let cost = |value: u64| {
        let more = value.saturating_sub(size.first).checked_mul(each)?;
        in_blocks(more)
    };
    let Some(wanted) = cost(long(value)) else {
        return OUT_OF_MEMORY;
    };
    let growth = wanted.saturating_sub(size.charged);
    if growth > 0
        && let Err(code) = account.reserve("cuCtxSetLimit", growth)
    {
        return code;
    }
    let code = real(limit, value);
    let before = size.charged;
    if code == SUCCESS {
        // The driver may have made another number of it.
        size.charged = asked(limit).and_then(cost).unwrap_or(wanted);
    }
    account.settle(before + growth, size.charged);
    let contexts = &account.process.contexts;
    contexts.resize(account.process, account.context, before, size.charged);
    sizes.insert(key, size);
    code
}

/// Bytes of the card for one of the value; `None`: it takes nothing of the card.
fn each(limit: c_uint) -> Option<u64> {
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

fn asked(limit: c_uint) -> Option<u64> {
    let mut value = 0;
    let code = call::cuCtxGetLimit(Out::to(&mut value), limit);
    (code == SUCCESS).then(|| long(value))
}
