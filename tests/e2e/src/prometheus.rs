//! A real Prometheus beside the cluster: Debian's package, unpacked once by
//! `tests/limiter/packages.sh`, scraping the parts every second.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use aliquot_cluster::Part;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::http;
use crate::stack::{Kind, PATIENCE, Stack};

/// Its port among the cluster's own.
const PORT: u16 = 9;
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A running Prometheus.
pub struct Prometheus {
    /// Its process; it ends with this value.
    _part: Part,
    address: SocketAddr,
}

/// A file of the repository.
pub fn file(path: &str) -> PathBuf {
    Path::new(REPOSITORY).join(path)
}

/// Where `prometheus` and `promtool` are.
fn programs() -> Result<PathBuf> {
    let made = Command::new(file("tests/limiter/packages.sh"))
        .args(["here", "prometheus"])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(made.status.success(), "packages.sh: {}", made.status);
    let text = String::from_utf8(made.stdout)?;
    Ok(Path::new(text.trim()).join("usr/bin"))
}

/// Lets `promtool` check something; what it complains of is the error.
pub fn promtool(words: &[&str], input: &str) -> Result<()> {
    let mut tool = Command::new(programs()?.join("promtool"))
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = tool.stdin.take().context("a pipe")?;
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    let output = tool.wait_with_output()?;
    ensure!(output.status.success(), "promtool {words:?}: {output:?}");
    Ok(())
}

impl Prometheus {
    /// Starts one that scrapes these parts and knows these rules.
    pub async fn start(stack: &Stack, parts: &[Kind], rules: &Path) -> Result<Self> {
        let address = stack.cluster.part_address(PORT);
        let folder = stack.files().join("prometheus");
        fs::create_dir_all(&folder)?;
        let jobs: Vec<Value> = parts
            .iter()
            .map(|kind| {
                let target = stack.address(*kind).to_string();
                json!({"job_name": kind.name(), "static_configs": [{"targets": [target]}]})
            })
            .collect();
        // JSON is YAML.
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [fs::canonicalize(rules)?],
            "scrape_configs": jobs,
        });
        let file = folder.join("prometheus.yml");
        fs::write(&file, config.to_string())?;
        let args = [
            format!("--config.file={}", file.display()),
            format!("--storage.tsdb.path={}", folder.join("data").display()),
            format!("--web.listen-address={address}"),
        ];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let program = programs()?.join("prometheus");
        let part = stack
            .cluster
            .start_part("prometheus", &program, &args, &[])?;
        eventually(PATIENCE, "Prometheus is ready", || async {
            part.check()?;
            http::get(address, "/-/ready").await.or_not_yet().map(Some)
        })
        .await?;
        Ok(Self {
            _part: part,
            address,
        })
    }

    /// How many series an expression gives now.
    pub async fn series(&self, expression: &str) -> Result<usize> {
        let answer = self.ask("/api/v1/query", expression).await?;
        let result = answer["data"]["result"].as_array();
        Ok(result.context("a result")?.len())
    }

    /// The rules: name, health and last error of each.
    pub async fn rules(&self) -> Result<Vec<[String; 3]>> {
        let text = http::get(self.address, "/api/v1/rules").await?;
        let answer: Value = serde_json::from_str(&text)?;
        let groups = answer["data"]["groups"].as_array().context("groups")?;
        let rules = groups.iter().filter_map(|group| group["rules"].as_array());
        let word = |rule: &Value, key: &str| rule[key].as_str().unwrap_or_default().to_owned();
        let rules = rules.flatten();
        Ok(rules
            .map(|rule| ["name", "health", "lastError"].map(|key| word(rule, key)))
            .collect())
    }

    async fn ask(&self, path: &str, expression: &str) -> Result<Value> {
        // The API reads a query from the address: all that is not plain is escaped.
        let escaped: String = expression
            .bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
                byte => format!("%{byte:02X}"),
            })
            .collect();
        let path = format!("{path}?query={escaped}");
        let (status, body) = http::call(self.address, &path).await?;
        ensure!(status == 200, "{expression}: {status}: {body}");
        Ok(serde_json::from_str(&body)?)
    }
}

/// Each query of each dashboard of the chart: where it stands, and itself with its variables
/// filled in.
pub fn queries() -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(file("charts/aliquot/files/dashboards"))? {
        let path = entry?.path();
        let board: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        let name = board["title"].as_str().context("a title")?;
        for panel in board["panels"].as_array().context("panels")? {
            let title = panel["title"].as_str().context("a title")?;
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expression = target["expr"].as_str().context("an expression")?;
                let expression = ["$node", "$namespace"]
                    .iter()
                    .fold(expression.to_owned(), |text, name| text.replace(name, ".*"));
                ensure!(
                    !expression.contains('$'),
                    "{}: {expression}",
                    path.display()
                );
                found.push((format!("{name}: {title}"), expression));
            }
        }
    }
    Ok(found)
}
