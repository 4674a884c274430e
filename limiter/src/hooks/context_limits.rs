//! Context limits that programs set and that take device memory at once: the buffer of `printf` and
//! the heap of kernels. What exceeds the initial value is charged when it is set, and released when
//! it is set lower or the context ends. Stacks and local memory are charged when the host sees them.

use core::ffi::c_uint;
use std::collections::HashMap;

use crate::charges::account::Account;
use crate::charges::allocations::in_blocks;
use crate::driver::call;
use crate::ffi::{Code, Handle, OUT_OF_MEMORY, Out, SUCCESS, long};
use crate::lock::FutexLock;
use crate::process::{PerProcess, ProcessState};

/// `CU_LIMIT_PRINTF_FIFO_SIZE` and `CU_LIMIT_MALLOC_HEAP_SIZE`.
const FIFO: c_uint = 1;
const HEAP: c_uint = 2;

#[derive(Clone, Copy, Debug)]
struct LimitCharge {
    first: u64,
    /// Bytes charged for what exceeds it.
    charged: u64,
}

impl LimitCharge {
    /// Bytes that this value takes beyond the initial one, in whole blocks.
    fn cost(self, value: u64) -> Option<u64> {
        in_blocks(value.saturating_sub(self.first))
    }
}

static CHARGES: PerProcess<FutexLock<HashMap<(Handle, c_uint), LimitCharge>>> = PerProcess::new();

/// A context ends; what was charged ends with it.
pub(crate) fn forget(process: &ProcessState, context: Handle) {
    let mut charges = CHARGES.of(process).lock();
    charges.retain(|(of, _), _| *of != context);
}

pub(crate) fn set(limit: c_uint, value: usize, call: impl FnOnce() -> Code) -> Result<Code, Code> {
    if !matches!(limit, FIFO | HEAP) {
        return Ok(call());
    }
    let Some(account) = Account::of_current()? else {
        return Ok(call());
    };
    let Some(current) = current_value(limit) else {
        return Ok(call());
    };
    let charges = CHARGES.of(account.process);
    let key = (account.context, limit);
    let first = LimitCharge {
        first: current,
        charged: 0,
    };
    let before = *charges.lock().entry(key).or_insert(first);
    let target = before.cost(long(value)).ok_or(OUT_OF_MEMORY)?;
    let growth = target.saturating_sub(before.charged);
    if growth > 0 {
        account.reserve("cuCtxSetLimit", growth)?;
    }
    // Not under the lock: the driver may wait for earlier work of the context.
    let code = call();
    let mut all = charges.lock();
    // Unless the context ended meanwhile, and its charge with it.
    let Some(known) = all.get_mut(&key) else {
        account.release(growth);
        return Ok(code);
    };
    // What the driver has now, which may have rounded the value, or another thread have set another.
    let now = current_value(limit).and_then(|value| known.cost(value));
    let otherwise = if code == SUCCESS {
        target
    } else {
        known.charged
    };
    let (old, new) = (known.charged, now.unwrap_or(otherwise));
    known.charged = new;
    account.correct_reservation(old + growth, new);
    let contexts = &account.process.contexts;
    contexts.resize(&account.process.slot, account.context, old, new);
    Ok(code)
}

fn current_value(limit: c_uint) -> Option<u64> {
    let mut value = 0;
    let code = call::cuCtxGetLimit(Out::to(&mut value), limit);
    (code == SUCCESS).then(|| long(value))
}
