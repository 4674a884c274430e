//! Reads metrics pages as Aliquot's exporters write them: label values without commas.

/// One line of a metrics page.
#[derive(Clone, Copy)]
pub(crate) struct Sample<'a> {
    pub(crate) name: &'a str,
    labels: &'a str,
    /// Its value as it is written.
    pub(crate) value: &'a str,
}

impl Sample<'_> {
    /// The value of a label, if the sample has it.
    pub(crate) fn label(&self, label: &str) -> Option<String> {
        let mut pairs = self
            .labels
            .split(',')
            .filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(name, _)| *name == label)?;
        Some(value.trim_matches('"').to_owned())
    }
}

/// The samples that have labels; all other lines are skipped.
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

/// The value of a metric without labels, or the sum over its labels.
pub(crate) fn sum(page: &str, name: &str) -> Option<f64> {
    let of = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let value = rest
            .starts_with([' ', '{'])
            .then(|| rest.rsplit(' ').next());
        value??.parse::<f64>().ok()
    };
    let values: Vec<f64> = page.lines().filter_map(of).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}
