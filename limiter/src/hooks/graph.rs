//! Memory of graphs' allocation nodes. The driver allocates it when a graph is launched or uploaded,
//! and keeps it until it is trimmed. It is charged when the call returns, as much as the driver says
//! it has reserved, whatever the limit; everything further is refused then.

use crate::charges::graphs;
use crate::ffi::{Code, Out};
use crate::process;

const UPLOAD: u64 = 2;

/// `parameters` begin with the flags.
pub(crate) fn instantiate(parameters: Out<u64>, call: impl FnOnce() -> Code) -> Code {
    let uploads = parameters.get().unwrap_or(0) & UPLOAD != 0;
    if uploads { charged_after(call) } else { call() }
}

/// Makes a call in which the driver may allocate or release memory of graphs.
pub(crate) fn charged_after(call: impl FnOnce() -> Code) -> Code {
    let code = call();
    if let Some(process) = process::limited() {
        graphs::refresh(process);
    }
    code
}
