//! Reads metrics pages as Aliquot's exporters write them: label values without commas.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_metric_over_labels() {
        let page =
            "# HELP a b\na_total 2\nb_total{x=\"1\"} 3\nb_total{x=\"2\"} 4\nb_total_more 9\n";
        assert_eq!(sum(page, "a_total"), Some(2.0));
        assert_eq!(sum(page, "b_total"), Some(7.0));
        assert_eq!(sum(page, "c_total"), None);
    }
}
