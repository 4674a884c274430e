//! The structure of graphs: edges, nodes that are added and changed one by one, and a graph as
//! text. Copies and fills of a graph move no contents.

use std::cell::RefCell;
use std::fmt::Write as _;

use parking_lot::Mutex;

use crate::calls::calls;
use crate::capture::{Node, Work};
use crate::codes::{ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE};
use crate::driver::driver;
use crate::exports::graphs::{add, kernel};
use crate::ffi::{Answer, Out, TextIn};
use crate::graph::{Graph, copy_of};
use crate::types::{Handle, KernelNodeParameters};

calls! { CALLS:
    cuGraphGetRootNodes 10000 cuGraphGetRootNodes(
        graph: Handle, nodes: Out<Handle>, count: Out<usize>,
    ) {
        let all = nodes_of(graph)?;
        let roots = all.iter().filter(|node| node.after.is_empty());
        put_list(&roots.map(|node| node.handle).collect::<Vec<_>>(), &nodes, &count)
    }

    cuGraphGetEdges 10000 cuGraphGetEdges(
        graph: Handle, from: Out<Handle>, to: Out<Handle>, count: Out<usize>,
    ) {
        put_edges(graph, &from, &to, &count)
    }

    cuGraphGetEdges 12030 cuGraphGetEdges_v2(
        graph: Handle, from: Out<Handle>, to: Out<Handle>, edges: Out<u64>, count: Out<usize>,
    ) {
        put_edges(graph, &from, &to, &count)?;
        put_plain_edges(&edges, &count)
    }

    cuGraphNodeGetDependencies 10000 cuGraphNodeGetDependencies(
        node: Handle, nodes: Out<Handle>, count: Out<usize>,
    ) {
        put_list(&before(node)?, &nodes, &count)
    }

    cuGraphNodeGetDependencies 12030 cuGraphNodeGetDependencies_v2(
        node: Handle, nodes: Out<Handle>, edges: Out<u64>, count: Out<usize>,
    ) {
        put_list(&before(node)?, &nodes, &count)?;
        put_plain_edges(&edges, &count)
    }

    cuGraphNodeGetDependentNodes 10000 cuGraphNodeGetDependentNodes(
        node: Handle, nodes: Out<Handle>, count: Out<usize>,
    ) {
        put_list(&behind(node)?, &nodes, &count)
    }

    cuGraphNodeGetDependentNodes 12030 cuGraphNodeGetDependentNodes_v2(
        node: Handle, nodes: Out<Handle>, edges: Out<u64>, count: Out<usize>,
    ) {
        put_list(&behind(node)?, &nodes, &count)?;
        put_plain_edges(&edges, &count)
    }

    cuGraphAddDependencies 10000 cuGraphAddDependencies(
        graph: Handle, from: Out<Handle>, to: Out<Handle>, count: usize,
    ) {
        connect(graph, &from, &to, count)
    }

    cuGraphAddDependencies 12030 cuGraphAddDependencies_v2(
        graph: Handle, from: Out<Handle>, to: Out<Handle>, _edges: u64, count: usize,
    ) {
        connect(graph, &from, &to, count)
    }

    cuGraphAddChildGraphNode 10000 cuGraphAddChildGraphNode(
        node: Out<Handle>, graph: Handle, after: Out<Handle>, count: usize, child: Handle,
    ) {
        let copies = nodes_of(child)?.into_iter().map(|node| Node {
            after: node.after,
            ..Node::new(node.work)
        });
        let copy = Graph(Mutex::new(copies.collect()));
        let copy = driver()?.objects.graphs.add(copy);
        add(&node, graph, &after, count, Work::Child { graph: copy })
    }

    cuGraphAddHostNode 10000 cuGraphAddHostNode(
        node: Out<Handle>, graph: Handle, after: Out<Handle>, count: usize, parameters: Out<u64>,
    ) {
        parameters.get()?;
        add(&node, graph, &after, count, Work::Host)
    }

    cuGraphAddMemcpyNode 10000 cuGraphAddMemcpyNode(
        node: Out<Handle>, graph: Handle, after: Out<Handle>, count: usize, parameters: Out<u64>,
        _context: Handle,
    ) {
        parameters.get()?;
        add(&node, graph, &after, count, Work::Copy)
    }

    cuGraphAddMemsetNode 10000 cuGraphAddMemsetNode(
        node: Out<Handle>, graph: Handle, after: Out<Handle>, count: usize, parameters: Out<u64>,
        _context: Handle,
    ) {
        parameters.get()?;
        add(&node, graph, &after, count, Work::Fill)
    }

    cuGraphKernelNodeSetParams 10000 cuGraphKernelNodeSetParams(
        node: Handle, parameters: Out<KernelNodeParameters>,
    ) {
        change(node, kernel(&parameters)?)
    }

    cuGraphKernelNodeSetParams 12000 cuGraphKernelNodeSetParams_v2(
        node: Handle, parameters: Out<KernelNodeParameters>,
    ) {
        change(node, kernel(&parameters)?)
    }

    cuGraphExecKernelNodeSetParams 10010 cuGraphExecKernelNodeSetParams(
        exec: Handle, node: Handle, parameters: Out<KernelNodeParameters>,
    ) {
        change_in(exec, node, kernel(&parameters)?)
    }

    cuGraphExecKernelNodeSetParams 12000 cuGraphExecKernelNodeSetParams_v2(
        exec: Handle, node: Handle, parameters: Out<KernelNodeParameters>,
    ) {
        change_in(exec, node, kernel(&parameters)?)
    }

    cuGraphExecGetFlags 12000 cuGraphExecGetFlags(exec: Handle, flags: Out<u64>) {
        flags.put(driver()?.objects.execs.get(exec, ERROR_INVALID_HANDLE)?.flags)
    }

    cuGraphDebugDotPrint 11030 cuGraphDebugDotPrint(graph: Handle, path: TextIn, _flags: u32) {
        let mut text = String::from("digraph {\n");
        for (index, node) in nodes_of(graph)?.iter().enumerate() {
            let _ = writeln!(text, "  n{index} [label=\"{:?}\"];", node.work);
            for before in &node.after {
                let _ = writeln!(text, "  n{before} -> n{index};");
            }
        }
        text.push_str("}\n");
        std::fs::write(path.read()?, text).map_err(|_| ERROR_INVALID_VALUE)
    }
}

fn nodes_of(graph: Handle) -> Answer<Vec<Node>> {
    let graphs = &driver()?.objects.graphs;
    Ok(copy_of(&graphs.get(graph, ERROR_INVALID_HANDLE)?))
}

/// Does something with the nodes of the graph that a node is in, and the node's place.
fn with_graph_of<T>(node: Handle, body: impl Fn(&mut [Node], usize) -> T) -> Answer<T> {
    let found = RefCell::new(None);
    driver()?.objects.graphs.each(|graph| {
        let mut nodes = graph.0.lock();
        if let Some(place) = nodes.iter().position(|known| known.handle == node) {
            *found.borrow_mut() = Some(body(&mut nodes, place));
        }
    });
    found.into_inner().ok_or(ERROR_INVALID_VALUE)
}

fn before(node: Handle) -> Answer<Vec<Handle>> {
    with_graph_of(node, |nodes, place| {
        let before = nodes[place].after.iter();
        before.map(|index| nodes[*index].handle).collect()
    })
}

fn behind(node: Handle) -> Answer<Vec<Handle>> {
    with_graph_of(node, |nodes, place| {
        let behind = nodes.iter().filter(|known| known.after.contains(&place));
        behind.map(|known| known.handle).collect()
    })
}

fn change(node: Handle, work: Work) -> Answer {
    with_graph_of(node, |nodes, place| nodes[place].work = work)
}

fn change_in(exec: Handle, node: Handle, work: Work) -> Answer {
    let exec = driver()?.objects.execs.get(exec, ERROR_INVALID_HANDLE)?;
    let mut nodes = exec.nodes.lock();
    let mut known = nodes.iter_mut();
    let node = known.find(|known| known.handle == node);
    node.ok_or(ERROR_INVALID_VALUE)?.work = work;
    Ok(())
}

/// Nodes run in the order in which they were added, so an edge may only lead to a later one.
fn connect(graph: Handle, from: &Out<Handle>, to: &Out<Handle>, count: usize) -> Answer {
    let graph = driver()?.objects.graphs.get(graph, ERROR_INVALID_HANDLE)?;
    let mut nodes = graph.0.lock();
    let pairs = from.get_all(count)?.into_iter().zip(to.get_all(count)?);
    for (from, to) in pairs {
        let place = |handle| nodes.iter().position(|node| node.handle == handle);
        let places = place(from).zip(place(to));
        let (from, to) = places
            .filter(|(from, to)| from < to)
            .ok_or(ERROR_INVALID_VALUE)?;
        if !nodes[to].after.contains(&from) {
            nodes[to].after.push(from);
        }
    }
    Ok(())
}

/// The two-call protocol: without a list only the number is returned.
fn put_list(values: &[Handle], list: &Out<Handle>, count: &Out<usize>) -> Answer {
    if !list.is_null() {
        for (index, value) in values.iter().take(count.get()?).enumerate() {
            list.put_at(index, *value)?;
        }
    }
    count.put(values.len())
}

fn put_edges(graph: Handle, from: &Out<Handle>, to: &Out<Handle>, count: &Out<usize>) -> Answer {
    let nodes = nodes_of(graph)?;
    let edges = nodes.iter().flat_map(|node| {
        let before = node.after.iter();
        before.map(|index| (nodes[*index].handle, node.handle))
    });
    let (starts, ends): (Vec<Handle>, Vec<Handle>) = edges.unzip();
    if !from.is_null() && !to.is_null() {
        for (index, (start, end)) in starts.iter().zip(&ends).take(count.get()?).enumerate() {
            from.put_at(index, *start)?;
            to.put_at(index, *end)?;
        }
    }
    count.put(starts.len())
}

/// The data of that many edges: all are plain ones.
fn put_plain_edges(edges: &Out<u64>, count: &Out<usize>) -> Answer {
    if edges.is_null() {
        return Ok(());
    }
    (0..count.get()?).try_for_each(|index| edges.put_at(index, 0))
}
