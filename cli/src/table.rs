//! Tables for a terminal.

use std::fmt::{Display, Write as _};

/// Columns as wide as their widest cell, separated by two spaces; their names are separated by `|`.
pub fn aligned(head: &str, rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.split('|').map(str::len).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| one_line(cell)).collect())
        .collect();
    for row in &rows {
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
    line(&mut head.split('|'));
    for row in &rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// Messages of webhooks have several lines.
fn one_line(cell: &str) -> String {
    if cell.contains('\n') {
        return cell.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    cell.to_owned()
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

/// How many names a line has.
const NAMED: usize = 5;

/// The first names, and how many more there are.
pub(crate) fn some<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let more = names.len().saturating_sub(NAMED);
    let text = names[..names.len() - more].join(", ");
    match more {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

pub(crate) fn dash() -> String {
    "-".to_owned()
}
