//! Graphs: building, instantiating, launching, and the memory of their allocation nodes.

use crate::calls::calls;
use crate::capture::Node;
use crate::capture::Work;
use crate::codes::{
    ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE, ERROR_NOT_SUPPORTED, ERROR_OUT_OF_MEMORY,
};
use crate::context::current;
use crate::driver::driver;
use crate::exports::launch::check;
use crate::ffi::{Answer, Out};
use crate::graph::{ExecutableGraph, Graph, copy_of, flat};
use crate::streams;
use crate::types::{
    AllocNodeParameters, ChildNodeParameters, Device, Handle, InstantiateParameters,
    KernelNodeParameters, KernelNodeParametersV2, Location, MemoryLocation, PoolProperties,
};
use parking_lot::Mutex;

/// `CU_GRAPH_NODE_TYPE_GRAPH` and `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`.
const CHILD: u32 = 4;
const MOVED: u32 = 1;
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
        driver()?.objects.graphs.remove(graph, ERROR_INVALID_HANDLE).map(|_| ())
    }

    cuGraphGetNodes 10000 cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let known = copy_of(&driver()?.objects.graphs.get(graph, ERROR_INVALID_HANDLE)?);
        if !nodes.is_null() {
            let room = count.get()?;
            for (index, node) in known.iter().take(room).enumerate() {
                nodes.put_at(index, node.handle)?;
            }
        }
        count.put(known.len())
    }

    cuGraphAddKernelNode 10000 cuGraphAddKernelNode(
        node: Out<Handle>, graph: Handle, after: Out<Handle>, count: usize,
        parameters: Out<KernelNodeParameters>,
    ) {
        add(&node, graph, &after, count, kernel(&parameters)?)
    }

    cuGraphAddKernelNode 12000 cuGraphAddKernelNode_v2(
        node: Out<Handle>, graph: Handle, after: Out<Handle>, count: usize,
        parameters: Out<KernelNodeParameters>,
    ) {
        add(&node, graph, &after, count, kernel(&parameters)?)
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
            MemoryLocation::Gpu(device) => Some(driver.gpu_index(device)?),
            MemoryLocation::Host => None,
            MemoryLocation::Nowhere | MemoryLocation::Other => return Err(ERROR_INVALID_VALUE),
        };
        let bytes = wanted.bytes as u64;
        wanted.pointer = driver.arena.take(bytes.max(4096)).ok_or(ERROR_OUT_OF_MEMORY)?;
        parameters.put(wanted)?;
        let address = wanted.pointer;
        let work = match gpu_index {
            Some(gpu_index) => Work::Alloc { address, bytes, gpu_index },
            None => Work::AllocOnHost { address, bytes },
        };
        add(&node, graph, &after, count, work)
    }

    cuGraphAddMemFreeNode 11040 cuGraphAddMemFreeNode(
        node: Out<Handle>, graph: Handle, after: Out<Handle>, count: usize, pointer: u64,
    ) {
        add(&node, graph, &after, count, Work::Free { address: pointer })
    }

    cuGraphAddNode 12020 cuGraphAddNode(
        node: Out<Handle>, graph: Handle, after: Out<Handle>, count: usize,
        parameters: Out<ChildNodeParameters>,
    ) {
        add_child(&node, graph, (&after, count), &parameters)
    }

    cuGraphAddNode 12030 cuGraphAddNode_v2(
        node: Out<Handle>, graph: Handle, after: Out<Handle>, _edges: u64, count: usize,
        parameters: Out<ChildNodeParameters>,
    ) {
        add_child(&node, graph, (&after, count), &parameters)
    }

    cuGraphChildGraphNodeGetGraph 10000 cuGraphChildGraphNodeGetGraph(
        node: Handle, graph: Out<Handle>,
    ) {
        match node_of(node)? {
            Work::Child { graph: inner } => graph.put(inner),
            _ => Err(ERROR_INVALID_VALUE),
        }
    }

    cuGraphNodeGetType 10000 cuGraphNodeGetType(node: Handle, kind: Out<u32>) {
        kind.put(match node_of(node)? {
            Work::Kernel { .. } => 0,
            Work::Copy => 1,
            Work::Fill => 2,
            Work::Child { .. } => 4,
            Work::Empty => 5,
            Work::Alloc { .. } | Work::AllocOnHost { .. } => 10,
            Work::Free { .. } => 11,
        })
    }

    cuGraphKernelNodeGetParams 10000 cuGraphKernelNodeGetParams(
        node: Handle, parameters: Out<KernelNodeParameters>,
    ) {
        parameters.put(kernel_parameters(node)?)
    }

    cuGraphKernelNodeGetParams 12000 cuGraphKernelNodeGetParams_v2(
        node: Handle, parameters: Out<KernelNodeParametersV2>,
    ) {
        parameters.put(KernelNodeParametersV2 {
            first: kernel_parameters(node)?,
            kernel: 0,
            context: 0,
        })
    }

    cuGraphMemAllocNodeGetParams 11040 cuGraphMemAllocNodeGetParams(
        node: Handle, parameters: Out<AllocNodeParameters>,
    ) {
        let (address, bytes, location) = match node_of(node)? {
            Work::Alloc { address, bytes, gpu_index } => {
                let id = driver()?.device_of(gpu_index).ok_or(ERROR_INVALID_VALUE)?;
                (address, bytes, Location { kind: 1, id })
            }
            Work::AllocOnHost { address, bytes } => (address, bytes, Location { kind: 2, id: 0 }),
            _ => return Err(ERROR_INVALID_VALUE),
        };
        parameters.put(AllocNodeParameters {
            pool: PoolProperties {
                kind: 1,
                handle_types: 0,
                location,
                windows: 0,
                most: 0,
                usage: 0,
                reserved: [0; 54],
            },
            access: 0,
            access_count: 0,
            bytes: usize::try_from(bytes).map_err(|_| ERROR_INVALID_VALUE)?,
            pointer: address,
        })
    }

    cuGraphMemFreeNodeGetParams 11040 cuGraphMemFreeNodeGetParams(node: Handle, pointer: Out<u64>) {
        match node_of(node)? {
            Work::Free { address } => pointer.put(address),
            _ => Err(ERROR_INVALID_VALUE),
        }
    }

    cuGraphInstantiate 10000 cuGraphInstantiate(
        exec: Out<Handle>, graph: Handle, _node: u64, _log: u64, _size: usize,
    ) {
        instantiate(&exec, graph, 0).map(|_| ())
    }

    cuGraphInstantiate 11000 cuGraphInstantiate_v2(
        exec: Out<Handle>, graph: Handle, _node: u64, _log: u64, _size: usize,
    ) {
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
                let _ = driver.objects.execs.remove(made, ERROR_INVALID_HANDLE);
            }
        })
    }

    cuGraphExecDestroy 10000 cuGraphExecDestroy(exec: Handle) {
        driver()?.objects.execs.remove(exec, ERROR_INVALID_HANDLE).map(|_| ())
    }

    cuGraphUpload 11010 cuGraphUpload(exec: Handle, stream: Handle) / 11010 cuGraphUpload_ptsz as own {
        upload(exec, stream, own)
    }

    cuGraphLaunch 10000 cuGraphLaunch(exec: Handle, stream: Handle) / 10000 cuGraphLaunch_ptsz as own {
        let (driver, stream) = (driver()?, streams::find(stream, own)?);
        let exec = driver.objects.execs.get(exec, ERROR_INVALID_HANDLE)?;
        if let Some(capture) = stream.capture.lock().clone() {
            let nodes = exec.nodes.lock().clone();
            return nodes.into_iter().try_for_each(|node| capture.add(stream.id, Node::new(node.work)));
        }
        let work = exec.start(driver, stream.context)?;
        stream.run(|| Node::new(Work::Empty), || work)
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

fn node_of(handle: Handle) -> Answer<Work> {
    let found = std::cell::Cell::new(None);
    driver()?.objects.graphs.each(|graph| {
        let nodes = graph.0.lock();
        if let Some(node) = nodes.iter().find(|node| node.handle == handle) {
            found.set(Some(node.work));
        }
    });
    found.get().ok_or(ERROR_INVALID_VALUE)
}

/// What is known of a kernel node: its function, as one thread without arguments.
fn kernel_parameters(node: Handle) -> Answer<KernelNodeParameters> {
    let Work::Kernel { function, .. } = node_of(node)? else {
        return Err(ERROR_INVALID_VALUE);
    };
    Ok(KernelNodeParameters {
        function,
        shape: [1; 6],
        shared: 0,
        parameters: 0,
        extra: 0,
    })
}

fn kernel(parameters: &Out<KernelNodeParameters>) -> Answer<Work> {
    let wanted = parameters.get()?;
    check(wanted.shape)?;
    let known = driver()?
        .objects
        .functions
        .get(wanted.function, ERROR_INVALID_HANDLE)?;
    Ok(Work::Kernel {
        function: wanted.function,
        time: known.time,
    })
}

fn add(node: &Out<Handle>, graph: Handle, after: &Out<Handle>, count: usize, work: Work) -> Answer {
    let known = driver()?.objects.graphs.get(graph, ERROR_INVALID_HANDLE)?;
    node.put(known.add(work, &after.get_all(count)?)?)
}

/// Of all kinds of nodes only graphs that are given away, which may hold allocations.
fn add_child(
    node: &Out<Handle>,
    graph: Handle,
    (after, count): (&Out<Handle>, usize),
    parameters: &Out<ChildNodeParameters>,
) -> Answer {
    let wanted = parameters.get()?;
    if wanted.kind != CHILD || wanted.ownership != MOVED {
        return Err(ERROR_NOT_SUPPORTED);
    }
    let graphs = &driver()?.objects.graphs;
    graphs.get(wanted.graph, ERROR_INVALID_HANDLE)?;
    let child = Work::Child {
        graph: wanted.graph,
    };
    add(node, graph, after, count, child)
}

/// Takes what a launch needs, and runs nothing.
fn upload(exec: Handle, stream: Handle, own: bool) -> Answer {
    let driver = driver()?;
    let exec = driver.objects.execs.get(exec, ERROR_INVALID_HANDLE)?;
    streams::find(stream, own)?;
    let nodes = exec.nodes.lock();
    driver.graph_memory.grow(driver, &nodes)
}

fn instantiate(exec: &Out<Handle>, graph: Handle, flags: u64) -> Answer<Handle> {
    current()?;
    let objects = &driver()?.objects;
    let nodes = flat(driver()?, &objects.graphs.get(graph, ERROR_INVALID_HANDLE)?)?;
    if exec.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    let made = objects.execs.add(ExecutableGraph {
        nodes: Mutex::new(nodes),
        flags,
    });
    exec.put(made)?;
    Ok(made)
}
