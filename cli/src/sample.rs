//! The samples of a metrics page with their labels, as our own exporters write them.
//!
//! Fed by: the text of `GET /metrics`. Must not: read pages of others, whose label values may
//! hold commas.

/// One line of a metrics page.
#[derive(Clone, Copy)]
pub(crate) struct Sample<'a> {
    /// The metric.
    pub(crate) name: &'a str,
    labels: &'a str,
    /// Its value as it is written.
    pub(crate) value: &'a str,
}

impl Sample<'_> {
    /// The value of a label, if the sample has it.
    pub(crate) fn label(&self, wanted: &str) -> Option<String> {
        let mut pairs = self
            .labels
            .split(',')
            .filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(name, _)| *name == wanted)?;
        Some(value.trim_matches('"').to_owned())
    }
}

/// The samples that have labels; all other lines are passed over.
pub(crate) fn samples(metrics: &str) -> impl Iterator<Item = Sample<'_>> {
    metrics.lines().filter_map(|line| {
        let (name, rest) = line.split_once('{')?;
        let (labels, value) = rest.rsplit_once("} ")?;
        let value = value.trim();
        Some(Sample {
            name,
            labels,
            value,
        })
    })
}
