//! Runs helm on `charts/aliquot`, and parses its output.

#![forbid(unsafe_code)]

pub mod image;
pub mod release;
pub mod simulated_node;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Where the chart is installed.
pub const NAMESPACE: &str = "aliquot-system";

/// The argument without which a checkout's chart is not rendered.
pub const IMAGE: &str = "--set=image.repository=localhost/aliquot";

/// A path from the top of the repository.
pub fn top(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// The chart's folder.
pub fn chart() -> String {
    top("charts/aliquot").to_string_lossy().into_owned()
}

/// What helm printed, and whether it succeeded.
#[derive(Clone, Debug)]
pub struct HelmOutput {
    /// Exit code 0.
    pub succeeded: bool,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl HelmOutput {
    /// Standard output, or an error if helm failed.
    pub fn success(self) -> Result<String> {
        ensure!(self.succeeded, "helm: {}{}", self.out, self.err);
        Ok(self.out)
    }
}

/// Runs helm.
pub fn helm(arguments: &[&str]) -> Result<HelmOutput> {
    run(helm_program()?, arguments)
}

/// Runs Helm 4, which applies objects on the API server.
pub fn helm_4(arguments: &[&str]) -> Result<HelmOutput> {
    run(&program_of("tests/chart/helm4.sh")?, arguments)
}

fn run(program: &str, arguments: &[&str]) -> Result<HelmOutput> {
    let folder = tempfile::tempdir()?;
    let output = Command::new(program)
        .args(arguments)
        .env("HELM_CACHE_HOME", folder.path())
        .env("HELM_CONFIG_HOME", folder.path())
        .env("HELM_DATA_HOME", folder.path())
        .stdin(Stdio::null())
        .output()
        .context("run helm")?;
    Ok(HelmOutput {
        succeeded: output.status.success(),
        out: String::from_utf8(output.stdout)?,
        err: String::from_utf8(output.stderr)?,
    })
}

/// The path of helm, which is built if this machine has none.
pub fn helm_program() -> Result<&'static str> {
    static FOUND: OnceLock<String> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    let path = program_of("hack/helm.sh")?;
    Ok(FOUND.get_or_init(|| path))
}

/// The path that a script prints, which builds the program if this machine has none.
fn program_of(script: &str) -> Result<String> {
    let output = Command::new(top(script))
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("run {script}"))?;
    ensure!(output.status.success(), "{script}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The objects that helm renders with additional arguments.
pub fn rendered(arguments: &[&str]) -> Result<Vec<Object>> {
    let chart = chart();
    let mut all = vec!["template", "aliquot", &chart, "-n", NAMESPACE, IMAGE];
    all.extend_from_slice(arguments);
    objects(&helm(&all)?.success()?)
}

/// The documents of a YAML text that are not empty.
pub fn objects(text: &str) -> Result<Vec<Object>> {
    let mut found = Vec::new();
    for document in format!("\n{text}").split("\n---") {
        let value: Value = serde_saphyr::from_str(document).context(document.to_owned())?;
        if !value.is_null() {
            found.push(Object(value));
        }
    }
    Ok(found)
}

/// A Kubernetes object.
#[derive(Clone, Debug, PartialEq)]
pub struct Object(pub Value);

impl Object {
    /// Its kind.
    pub fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The spec of its pod template, if it has one.
    pub fn pod(&self) -> Option<&Value> {
        let spec = &self.0["spec"]["template"]["spec"];
        spec.is_object().then_some(spec)
    }

    /// The containers of its pod template.
    pub fn containers(&self) -> Vec<&Value> {
        let lists = ["initContainers", "containers"]
            .map(|list| self.0["spec"]["template"]["spec"][list].as_array());
        lists.into_iter().flatten().flatten().collect()
    }
}

/// The only object of a kind and a name.
pub fn one<'a>(objects: &'a [Object], kind: &str, name: &str) -> &'a Object {
    let mut found = objects
        .iter()
        .filter(|object| object.kind() == kind && object.name() == name);
    let first = found.next();
    assert!(found.next().is_none(), "two {kind} {name}");
    first.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// The container of this name.
pub fn container<'a>(object: &'a Object, name: &str) -> &'a Value {
    let mut all = object.containers().into_iter();
    all.find(|one| one["name"] == name)
        .unwrap_or_else(|| panic!("{} has no container {name}", object.name()))
}

/// The strings of a list.
pub fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}
