//! How well the scheduler's decisions pack, by tests/packing.

use aliquot_packing::figures;
use anyhow::Result;

use crate::client::Figure;

/// All figures, or none where the traces are absent.
pub(crate) fn measure() -> Result<Vec<Figure>> {
    let figures = figures::measure()?.into_iter();
    let figure = |found: figures::Figure| Figure {
        name: found.name,
        value: found.value,
        unit: "%",
        baseline: found.baseline,
        what: found.what,
    };
    Ok(figures.map(figure).collect())
}
