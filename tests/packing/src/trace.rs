//! A trace: the nodes and pods of openb's CSV files.

use anyhow::{Context as _, Result, ensure};

/// A whole GPU, in the trace's unit.
pub const WHOLE: u32 = 1000;
/// Most different models: one bit each in [`Models`].
const MOST_MODELS: usize = 64;

/// A set of models as bits; [`Models::ANY`] for a pod that takes every model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Models(u64);

impl Models {
    /// No constraint.
    pub const ANY: Self = Self(0);

    /// The models of both sets; neither may be [`Models::ANY`].
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether a GPU of `model` (one bit) is allowed.
    pub fn allow(self, model: Self) -> bool {
        self == Self::ANY || self.0 & model.0 != 0
    }
}

/// A node of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Unique.
    pub name: String,
    /// Thousandths of a core.
    pub cpu: u32,
    /// MiB of host memory.
    pub memory: u32,
    /// Number of GPUs.
    pub gpus: u32,
    /// Their model, one bit.
    pub model: Models,
}

/// What a pod of the trace requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Thousandths of a core.
    pub cpu: u32,
    /// Of each GPU, in thousandths; 0 without GPUs.
    pub milli: u32,
    /// Number of GPUs; above 1 only with whole ones.
    pub gpus: u32,
    /// Allowed models.
    pub models: Models,
}

impl Shape {
    /// The sum over its GPUs, in thousandths.
    pub fn request(&self) -> u32 {
        self.gpus * self.milli
    }

    /// Whether it is a part of one GPU.
    pub fn is_fraction(&self) -> bool {
        self.milli > 0 && self.milli < WHOLE
    }
}

/// A pod of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRow {
    /// Orders the pods before they are shuffled.
    pub name: String,
    /// MiB of host memory.
    pub memory: u32,
    /// The rest of its request.
    pub shape: Shape,
}

/// Both files.
#[derive(Clone, Debug)]
pub struct Trace {
    /// In the order of their file.
    pub nodes: Vec<NodeRow>,
    /// In the order of their file.
    pub pods: Vec<PodRow>,
    /// The names behind the bits of [`Models`].
    pub models: Vec<String>,
}

impl Trace {
    /// Reads the text of both files.
    pub fn parse(nodes: &str, pods: &str) -> Result<Self> {
        let mut known = Vec::new();
        let nodes = rows(nodes, |line| {
            let [name, cpu, memory, gpus, model] = columns(line)?;
            Ok(NodeRow {
                name: name.to_owned(),
                cpu: cpu.parse()?,
                memory: memory.parse()?,
                gpus: gpus.parse()?,
                model: models(&mut known, model)?,
            })
        })?;
        let pods = rows(pods, |line| {
            let [name, cpu, memory, gpus, milli, names] = columns(line)?;
            Ok(PodRow {
                name: name.to_owned(),
                memory: memory.parse()?,
                shape: Shape {
                    cpu: cpu.parse()?,
                    milli: milli.parse()?,
                    gpus: gpus.parse()?,
                    models: models(&mut known, names)?,
                },
            })
        })?;
        Ok(Self {
            nodes,
            pods,
            models: known,
        })
    }

    /// All GPUs of all nodes, in thousandths of a GPU.
    pub fn capacity(&self) -> u32 {
        self.nodes.iter().map(|node| node.gpus * WHOLE).sum()
    }

    /// The names of a set of models; none for [`Models::ANY`].
    pub fn names(&self, models: Models) -> impl Iterator<Item = &str> {
        let inside = move |at: &usize| models.0 & (1 << at) != 0;
        (0..self.models.len())
            .filter(inside)
            .map(|at| self.models[at].as_str())
    }

    /// The sum of the pods' requests, in thousandths of a GPU.
    pub fn request(&self) -> u32 {
        self.pods.iter().map(|pod| pod.shape.request()).sum()
    }
}

/// The lines below the heading.
fn rows<T>(text: &str, mut read: impl FnMut(&str) -> Result<T>) -> Result<Vec<T>> {
    let lines = text.lines().skip(1);
    lines
        .map(|line| read(line).with_context(|| format!("{line:?}")))
        .collect()
}

/// The columns of a line; one file of pods lacks the last, the models.
fn columns<const N: usize>(line: &str) -> Result<[&str; N]> {
    let mut columns = [""; N];
    let mut count = 0;
    for (column, text) in columns.iter_mut().zip(line.split(',')) {
        *column = text;
        count += 1;
    }
    ensure!(count >= 5, "expected: at least 5 columns");
    Ok(columns)
}

/// The bits of a `|`-list of model names, new ones added to `known`.
fn models(known: &mut Vec<String>, names: &str) -> Result<Models> {
    let mut bits = 0;
    for name in names.split('|').filter(|name| !name.is_empty()) {
        let at = known.iter().position(|other| other == name);
        let at = at.unwrap_or_else(|| {
            known.push(name.to_owned());
            known.len() - 1
        });
        ensure!(at < MOST_MODELS, "expected: at most {MOST_MODELS} models");
        bits |= 1 << at;
    }
    Ok(Models(bits))
}
