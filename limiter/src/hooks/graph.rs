//! Memory of graphs' allocation nodes. The driver allocates it when a graph is launched or uploaded,
//! and keeps it until it is trimmed. It is charged when the call returns, as much as the driver says
//! it has reserved, whatever the limit; everything further is refused then.

use crate::charges::graphs::GraphMemory;
use crate::ffi::{Code, Device, Handle, Out};
use crate::process;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;

/// `parameters` begin with the flags.
pub(crate) fn instantiate(
    real: extern "C" fn(Out<Handle>, Handle, Out<u64>) -> Code,
    made: Out<Handle>,
    graph: Handle,
    parameters: Out<u64>,
) -> Code {
    let uploads = parameters.get().unwrap_or(0) & UPLOAD != 0;
    let call = || real(made, graph, parameters);
    if uploads { charged_after(call) } else { call() }
}

/// Makes a call in which the driver may allocate or release memory of graphs.
pub(crate) fn charged_after(call: impl FnOnce() -> Code) -> Code {
    let code = call();
    if let Some(process) = process::limited() {
        GraphMemory::of(process).refresh(process);
    }
    code
}

/// The driver releases what no graph uses.
pub(crate) fn trim(real: extern "C" fn(Device) -> Code, device: Device) -> Code {
    charged_after(|| real(device))
}

/// Allocates a graph's memory, and does not run it.
pub(crate) fn upload(
    real: extern "C" fn(Handle, Handle) -> Code,
    graph: Handle,
    stream: Handle,
) -> Code {
    charged_after(|| real(graph, stream))
}
