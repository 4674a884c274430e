//! Formats answers for a terminal.

use std::fmt::{Display, Write as _};

use aliquot_core::answer::{PodAnswer, PodHeader};
use aliquot_core::explain::{GpuAnswer, NodeAnswer};
use aliquot_core::top::DeviceAmount;

use crate::what_if::{Change, WhatIf};

/// Columns as wide as their widest cell, separated by two spaces.
pub fn aligned(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut row = String::new();
        for (cell, width) in cells.zip(&widths) {
            let _ = write!(row, "{cell:<width$}  ");
        }
        text.push_str(row.trim_end());
        text.push('\n');
    };
    line(&mut head.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// A count with its noun: `1 node`, `2 nodes`.
pub(crate) fn counted<N: Copy + Display + PartialEq + From<u8>>(
    number: N,
    one: &str,
    several: &str,
) -> String {
    let what = if number == N::from(1) { one } else { several };
    format!("{number} {what}")
}

/// The answer for a pod; at most `most` nodes, those that fit first.
pub fn explain(answer: &PodAnswer, most: usize) -> String {
    let head = &answer.head;
    let mut text = asks(head);
    if let Some(booked) = &head.placement {
        let state = if booked.confirmed {
            "Bound to"
        } else {
            "Being bound to"
        };
        let _ = writeln!(text, "{state} {} with", booked.node);
        match &booked.gpus {
            None => {
                text.push_str("  an allocation that cannot be read; it counts as the whole node\n");
            }
            Some(gpus) => {
                for (gpu, amount) in gpus {
                    let _ = writeln!(text, "  {gpu}: {}, {}", amount.memory, amount.cores);
                }
            }
        }
        return text;
    }
    match &head.refused {
        Some(refused) => {
            let _ = writeln!(
                text,
                "Refused {} in {}, last {} ago: {}",
                counted(refused.times, "time", "times"),
                span(refused.first_seconds_ago - refused.last_seconds_ago),
                span(refused.last_seconds_ago),
                refused.text
            );
        }
        None => text.push_str("Not refused since this scheduler started.\n"),
    }
    text.push_str(&nodes_table(answer, most));
    text
}

/// How many nodes the pod fits, and a table of at most `most` nodes.
fn nodes_table(answer: &PodAnswer, most: usize) -> String {
    let tail = &answer.tail;
    let mut text = String::new();
    let _ = write!(
        text,
        "Nodes that fit now: {} of {} offered",
        tail.fitting, tail.offered
    );
    if !tail.why.is_empty() {
        let _ = write!(text, "; reasons of the others: {}", tail.why);
    }
    text.push_str("\n\n");
    let mut nodes: Vec<&NodeAnswer> = answer.nodes.iter().collect();
    nodes.sort_by_key(|node| (!node.offered, !node.fits));
    let rows: Vec<_> = nodes.iter().take(most).flat_map(|n| answers(n)).collect();
    let columns = [
        "NODE",
        "GPU",
        "MODEL",
        "FREE MIB",
        "FREE CORES",
        "FREE SEATS",
        "NEEDS MIB",
        "NEEDS CORES",
        "ANSWER",
    ];
    text.push_str(&aligned(&columns, &rows));
    if nodes.len() > most {
        let more = nodes.len() - most;
        let _ = writeln!(
            text,
            "... and {}; use --nodes to show more",
            counted(more, "more node", "more nodes")
        );
    }
    text
}

/// A pod and what its containers request.
fn asks(head: &PodHeader) -> String {
    let mut text = format!("{}/{}", head.namespace, head.name);
    for asked in &head.requests {
        let (stage, count) = (&asked.stage, asked.count);
        let _ = write!(
            text,
            "\n  {stage} container {} requests {count} x {}({}, {})",
            asked.container,
            other(&asked.resource),
            asked.memory,
            asked.cores
        );
    }
    text.push('\n');
    text
}

/// The name of a resource other than the usual one.
fn other(resource: &str) -> String {
    match resource {
        "" | "nvidia.com/gpu" => String::new(),
        other => format!("{other} "),
    }
}

/// Whether a pod would fit, where, and what would help.
pub fn what_if(answer: &WhatIf, most: usize) -> String {
    let mut text = asks(&answer.answer.head);
    match answer.ranks.first() {
        Some((best, _)) => {
            let _ = writeln!(text, "The pod would be placed on node {best}.");
        }
        None => text.push_str("The pod would stay pending.\n"),
    }
    let change = |change: &Change| {
        let (what, nodes, best) = (&change.change, change.nodes, &change.best);
        vec![what.clone(), nodes.to_string(), best.clone()]
    };
    if !answer.changes.is_empty() {
        text.push_str("\nEach of these changes alone would help:\n\n");
        let rows: Vec<_> = answer.changes.iter().map(change).collect();
        text.push_str(&aligned(&["CHANGE", "NODES", "BEST"], &rows));
    } else if answer.ranks.is_empty() {
        text.push_str("No single change would help.\n");
    }
    text.push('\n');
    text.push_str(&nodes_table(&answer.answer, most));
    text
}

fn answers(node: &NodeAnswer) -> Vec<Vec<String>> {
    let mut remark = String::new();
    if !node.offered {
        remark.push_str(" (not offered by kube-scheduler)");
    }
    if node.crowded {
        remark.push_str(" (pods that are being placed take its capacity)");
    }
    if node.gpus.is_empty() {
        let mut row = vec![node.node.to_string()];
        row.extend(std::iter::repeat_n("-".to_owned(), 7));
        row.push(format!("{}{remark}", node.why));
        return vec![row];
    }
    let row = |gpu: &GpuAnswer| {
        let needs = |of: fn(&DeviceAmount) -> String| gpu.needs.as_ref().map_or_else(dash, of);
        let whole = if gpu.answer == aliquot_core::explain::NOT_ASKED {
            &node.why
        } else {
            &gpu.answer
        };
        vec![
            node.node.to_string(),
            gpu.index.to_string(),
            gpu.model.clone(),
            gpu.left.memory.0.to_string(),
            gpu.left.cores.0.to_string(),
            gpu.left.replicas.to_string(),
            needs(|amount| amount.memory.0.to_string()),
            needs(|amount| amount.cores.0.to_string()),
            match gpu.detail.as_str() {
                "" => format!("{whole}{remark}"),
                detail => format!("{whole} ({detail}){remark}"),
            },
        ]
    };
    node.gpus.iter().map(row).collect()
}

pub(crate) fn dash() -> String {
    "-".to_owned()
}

/// Seconds, minutes or hours, rounded down.
fn span(seconds: f64) -> String {
    let format = |value: f64, unit: &str| format!("{:.0}{unit}", value.floor());
    match seconds {
        s if s < 120.0 => format(s, "s"),
        s if s < 7200.0 => format(s / 60.0, "m"),
        s => format(s / 3600.0, "h"),
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
