//! Reads metrics pages as Aliquot's exporters write them.

/// The samples of a metric with this one label: the label's value, and the sample's as it is written.
pub(crate) fn by_label<'a>(page: &'a str, name: &str, label: &str) -> Vec<(&'a str, &'a str)> {
    let start = format!("{name}{{{label}=\"");
    let sample = |line: &'a str| line.strip_prefix(&*start)?.split_once("\"} ");
    page.lines().filter_map(sample).collect()
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
