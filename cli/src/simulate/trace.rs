//! The two CSV files of a trace, nodes and pods, in the format of the openb GPU-sharing trace. Columns
//! are found by their names in the heading; fields must not be quoted.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// A whole GPU, in the trace's unit.
pub const WHOLE: u32 = 1000;
/// Most GPUs of a node or of a pod.
const MOST_GPUS: u32 = 64;
/// Most different models: one bit each in [`Models`].
const MOST_MODELS: usize = 64;

/// Why a trace cannot be read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The heading lacks a column.
    #[error("{}: line 1: there is no column {column:?}; expected: a heading with {expected}", .path.display())]
    Column {
        /// The file.
        path: PathBuf,
        /// What is missing.
        column: &'static str,
        /// The columns that are needed.
        expected: String,
    },
    /// An invalid value.
    #[error("{}: line {line}: {field} is {value:?}; expected: {expected}", .path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The column.
        field: &'static str,
        /// The value in the file.
        value: String,
        /// Valid values.
        expected: &'static str,
    },
    /// A heading and nothing else.
    #[error("{}: there are no rows below the heading", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

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
    /// Reads both files.
    pub fn read(nodes: &Path, pods: &Path) -> Result<Self, TraceError> {
        let mut trace = Self {
            nodes: Vec::new(),
            pods: Vec::new(),
            models: Vec::new(),
        };
        let text = read(nodes)?;
        let table = Table::new(
            nodes,
            &text,
            &["sn", "cpu_milli", "memory_mib", "gpu", "model"],
        )?;
        for row in table.rows() {
            trace.nodes.push(NodeRow {
                name: row.text(0)?.to_owned(),
                cpu: row.number(1, u32::MAX)?,
                memory: row.number(2, u32::MAX)?,
                gpus: row.number(3, MOST_GPUS)?,
                model: models(&mut trace.models, &row, 4)?,
            });
        }
        let text = read(pods)?;
        let columns = ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];
        let mut table = Table::new(pods, &text, &columns)?;
        let constrained = table.add("gpu_spec");
        for row in table.rows() {
            let gpus = row.number(3, MOST_GPUS)?;
            let milli = row.number(4, WHOLE)?;
            if (gpus == 0) != (milli == 0) || (gpus > 1 && milli < WHOLE) {
                return Err(row.field_error(
                    4,
                    "0 without GPUs, 1 to 1000 with one GPU, 1000 with several",
                ));
            }
            let models = match constrained {
                Some(column) if gpus > 0 => models(&mut trace.models, &row, column)?,
                _ => Models::ANY,
            };
            let shape = Shape {
                cpu: row.number(1, u32::MAX)?,
                milli,
                gpus,
                models,
            };
            trace.pods.push(PodRow {
                name: row.text(0)?.to_owned(),
                memory: row.number(2, u32::MAX)?,
                shape,
            });
        }
        for (path, rows) in [(nodes, trace.nodes.len()), (pods, trace.pods.len())] {
            if rows == 0 {
                return Err(TraceError::Empty {
                    path: path.to_owned(),
                });
            }
        }
        Ok(trace)
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

fn read(path: &Path) -> Result<String, TraceError> {
    let path = path.to_owned();
    std::fs::read_to_string(&path).map_err(|source| TraceError::Read { path, source })
}

/// The bits of a `|`-list of model names, new ones added to `known`.
fn models(known: &mut Vec<String>, row: &Row<'_>, column: usize) -> Result<Models, TraceError> {
    let mut bits = 0;
    for name in row.text(column)?.split('|').filter(|name| !name.is_empty()) {
        let at = known.iter().position(|other| other == name);
        let at = at.unwrap_or_else(|| {
            known.push(name.to_owned());
            known.len() - 1
        });
        if at >= MOST_MODELS {
            return Err(row.field_error(column, "at most 64 different models"));
        }
        bits |= 1 << at;
    }
    Ok(Models(bits))
}

/// A file with the positions of its columns.
struct Table<'a> {
    path: &'a Path,
    text: &'a str,
    columns: Vec<(&'static str, usize)>,
}

/// One line of it.
struct Row<'a> {
    table: &'a Table<'a>,
    line: usize,
    fields: Vec<&'a str>,
}

impl<'a> Table<'a> {
    fn new(path: &'a Path, text: &'a str, columns: &[&'static str]) -> Result<Self, TraceError> {
        let mut table = Self {
            path,
            text,
            columns: Vec::new(),
        };
        for &column in columns {
            if table.add(column).is_none() {
                return Err(TraceError::Column {
                    path: path.to_owned(),
                    column,
                    expected: columns.join(", "),
                });
            }
        }
        Ok(table)
    }

    /// Adds a column; returns its number for [`Row::text`] if the heading has it.
    fn add(&mut self, column: &'static str) -> Option<usize> {
        let heading = self.text.lines().next().unwrap_or_default();
        let at = heading.split(',').position(|name| name.trim() == column)?;
        self.columns.push((column, at));
        Some(self.columns.len() - 1)
    }

    fn rows(&'a self) -> impl Iterator<Item = Row<'a>> {
        let lines = self.text.lines().enumerate().skip(1);
        let lines = lines.filter(|(_, line)| !line.trim().is_empty());
        lines.map(|(at, line)| Row {
            table: self,
            line: at + 1,
            fields: line.split(',').map(str::trim).collect(),
        })
    }
}

impl Row<'_> {
    fn text(&self, column: usize) -> Result<&str, TraceError> {
        let (_, at) = self.table.columns[column];
        match self.fields.get(at) {
            Some(text) if !text.contains('"') => Ok(text),
            _ => Err(self.field_error(column, "a field without quotation marks in every column")),
        }
    }

    fn number(&self, column: usize, most: u32) -> Result<u32, TraceError> {
        let number = self.text(column)?.parse().ok().filter(|n| *n <= most);
        number.ok_or_else(|| match most {
            WHOLE => self.field_error(column, "a whole number from 0 to 1000"),
            MOST_GPUS => self.field_error(column, "a whole number from 0 to 64"),
            _ => self.field_error(column, "a whole number from 0 to 4294967295"),
        })
    }

    fn field_error(&self, column: usize, expected: &'static str) -> TraceError {
        let (field, at) = self.table.columns[column];
        TraceError::Field {
            path: self.table.path.to_owned(),
            line: self.line,
            field,
            value: (*self.fields.get(at).unwrap_or(&"")).to_owned(),
            expected,
        }
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
