//! Graphs: building, instantiating, launching, and the memory of their allocation nodes.

use crate::calls::calls;
use crate::capture::{Node, Work};
use crate::codes::{ERROR_INVALID_VALUE, ERROR_NOT_SUPPORTED, ERROR_OUT_OF_MEMORY};
use crate::context::current;
use crate::driver::driver;
use crate::ffi::{Answer, Out};
use crate::graph::{ExecutableGraph, Graph};
use crate::streams;
use crate::types::{AllocNodeParameters, Device, Handle, InstantiateParameters, MemoryLocation};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;

calls! { CALLS:
    cuGraphCreate 10000 cuGraphCreate(graph: Out<Handle>, flags: u32) {
        if flags != 0 || graph.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        graph.put(driver()?.objects.graphs.add(Graph::default()))
    }

    cuGraphDestroy 10000 cuGraphDestroy(graph: Handle) {
        driver()?.objects.graphs.remove(graph).map(|_| ())
    }

    cuGraphAddMemAllocNode 11040 cuGraphAddMemAllocNode(
        node: Out<Handle>, graph: Handle, after: Out<Handle>, count: usize,
        parameters: Out<AllocNodeParameters>,
    ) {
        let mut wanted = parameters.get()?;
        if wanted.bytes == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        let driver = driver()?;
        let gpu_index = match wanted.pool.location.place() {
            MemoryLocation::Gpu(device) => driver.gpu_index(device)?,
            MemoryLocation::Host => return Err(ERROR_NOT_SUPPORTED),
            MemoryLocation::Nowhere | MemoryLocation::Other => return Err(ERROR_INVALID_VALUE),
        };
        let bytes = wanted.bytes as u64;
        let address = driver.arena.take(bytes.max(4096)).ok_or(ERROR_OUT_OF_MEMORY)?;
        wanted.pointer = address;
        parameters.put(wanted)?;
        add(&node, graph, &after, count, Work::Alloc { address, bytes, gpu_index })
    }

    cuGraphAddMemFreeNode 11040 cuGraphAddMemFreeNode(
        node: Out<Handle>, graph: Handle, after: Out<Handle>, count: usize, pointer: u64,
    ) {
        add(&node, graph, &after, count, Work::Free { address: pointer })
    }

    cuGraphInstantiate 10000 cuGraphInstantiate(
        exec: Out<Handle>, graph: Handle, _node: u64, _log: u64, _size: usize,
    ), 11000 cuGraphInstantiate_v2 {
        instantiate(&exec, graph, 0).map(|_| ())
    }

    cuGraphInstantiate 12000 cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, flags: u64) {
        instantiate(&exec, graph, flags).map(|_| ())
    }

    cuGraphInstantiateWithParams 12000 cuGraphInstantiateWithParams(
        exec: Out<Handle>, graph: Handle, parameters: Out<InstantiateParameters>,
    ) / 12000 cuGraphInstantiateWithParams_ptsz as own {
        let wanted = parameters.get()?;
        let made = instantiate(&exec, graph, wanted.flags)?;
        if wanted.flags & UPLOAD == 0 {
            return Ok(());
        }
        upload(made, wanted.stream, own).inspect_err(|_| {
            if let Ok(driver) = driver() {
                let _ = driver.objects.execs.remove(made);
            }
        })
    }

    cuGraphExecDestroy 10000 cuGraphExecDestroy(exec: Handle) {
        driver()?.objects.execs.remove(exec).map(|_| ())
    }

    cuGraphUpload 11010 cuGraphUpload(exec: Handle, stream: Handle) / 11010 cuGraphUpload_ptsz as own {
        upload(exec, stream, own)
    }

    cuGraphLaunch 10000 cuGraphLaunch(exec: Handle, stream: Handle) / 10000 cuGraphLaunch_ptsz as own {
        let (driver, stream) = (driver()?, streams::find(stream, own)?);
        let exec = driver.objects.execs.get(exec)?;
        if let Some(capture) = stream.capture.lock().clone() {
            let mut nodes = exec.nodes.iter();
            return nodes.try_for_each(|node| capture.add(stream.id, Node::new(node.work)));
        }
        let work = exec.start(driver, stream.context)?;
        stream.run(|| Node::new(Work::Other), || work)
    }

    cuDeviceGetGraphMemAttribute 11040 cuDeviceGetGraphMemAttribute(
        device: Device, attribute: u32, value: Out<u64>,
    ) {
        let driver = driver()?;
        let reserve = driver.graph_memory.with(driver.gpu_index(device)?, |reserve| *reserve);
        value.put(match attribute {
            0 => reserve.used,
            1 => reserve.used_high,
            2 => reserve.reserved,
            3 => reserve.reserved_high,
            _ => return Err(ERROR_INVALID_VALUE),
        })
    }

    cuDeviceGraphMemTrim 11040 cuDeviceGraphMemTrim(device: Device) {
        let driver = driver()?;
        driver.graph_memory.trim(driver, driver.gpu_index(device)?);
        Ok(())
    }
}

fn add(node: &Out<Handle>, graph: Handle, after: &Out<Handle>, count: usize, work: Work) -> Answer {
    let known = driver()?.objects.graphs.get(graph)?;
    node.put(known.add(work, &after.get_all(count)?)?)
}

/// Takes what a launch needs, and runs nothing.
fn upload(exec: Handle, stream: Handle, own: bool) -> Answer {
    let driver = driver()?;
    let exec = driver.objects.execs.get(exec)?;
    streams::find(stream, own)?;
    driver.graph_memory.grow(driver, &exec.nodes)
}

fn instantiate(exec: &Out<Handle>, graph: Handle, flags: u64) -> Answer<Handle> {
    current()?;
    let objects = &driver()?.objects;
    let graph = objects.graphs.get(graph)?;
    if exec.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    let nodes = graph.0.lock().clone();
    let made = objects.execs.add(ExecutableGraph { nodes, flags });
    exec.put(made)?;
    Ok(made)
}
