//! Ways in: programs with a deadline, kubectl, identities of service accounts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use kube::config::Kubeconfig;
use serde_json::json;

use crate::cluster::Cluster;
use crate::wait::{OrNotYet as _, PATIENCE, eventually};

/// How long a helper program may run: less than any client's own timeout.
const PROGRAM: Duration = Duration::from_mins(3);
/// Life of a service account's token: longer than any demo.
const TOKEN: i64 = 24 * 60 * 60;

/// What a program printed and how it ended.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command line, for messages.
    pub command: String,
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error (kubectl prints admission warnings here).
    pub stderr: String,
}

impl Output {
    /// Standard output of a program that ended well.
    ///
    /// # Errors
    /// It did not; the error holds all it printed.
    pub fn success(self) -> Result<String> {
        if self.code == Some(0) {
            return Ok(self.stdout);
        }
        bail!(
            "{} ended with {:?}: {}{}",
            self.command,
            self.code,
            self.stdout,
            self.stderr
        )
    }
}

impl Cluster {
    /// Runs a program to its end.
    pub(crate) async fn tool(&self, path: &Path, args: &[&str]) -> Result<Output> {
        let command = format!("{} {}", path.display(), args.join(" "));
        let run = tokio::process::Command::new(path)
            .args(args)
            .env("KUBECACHEDIR", self.layout.at("kubectl"))
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(PROGRAM, run)
            .await
            .with_context(|| format!("{command}: still running after {PROGRAM:?}"))?
            .with_context(|| format!("run {command}"))?;
        Ok(Output {
            command,
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Runs a program in the node's mount namespace to its end.
    ///
    /// # Errors
    /// There is no node, or the program cannot be run or takes too long. Its own failure is in the
    /// output.
    pub async fn run_on_node(&self, program: &str, args: &[&str]) -> Result<Output> {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        let inside = self.inside(Path::new(program), args)?;
        let args: Vec<&str> = inside.args.iter().map(String::as_str).collect();
        self.tool(&inside.path, &args).await
    }

    /// kubectl of this cluster's version, with all rights.
    ///
    /// # Errors
    /// It cannot be run, or takes too long. A refusal is in the output.
    pub async fn kubectl(&self, args: &[&str]) -> Result<Output> {
        let config = format!("--kubeconfig={}", self.kubeconfig().display());
        let mut all = vec!["kubectl", &config];
        all.extend_from_slice(args);
        self.tool(&self.binaries.join("kubebox"), &all).await
    }

    /// Waits until the API server serves every definition of custom resources. kubectl does not wait
    /// for one that has no status yet.
    ///
    /// # Errors
    /// One of them is not served.
    pub async fn wait_established(&self) -> Result<()> {
        let wait = ["wait", "--for=condition=Established", "crd", "--all"];
        eventually(PATIENCE, "every definition to be served", || async {
            self.kubectl(&wait).await?.success().or_not_yet()?;
            Ok(Some(()))
        })
        .await
    }

    /// Runs a command in a container.
    ///
    /// # Errors
    /// kubectl cannot be run; the command's own failure is in the output.
    pub async fn exec(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        command: &[&str],
    ) -> Result<Output> {
        let mut args = vec!["exec", "-n", namespace, pod, "-c", container, "--"];
        args.extend_from_slice(command);
        self.kubectl(&args).await
    }

    /// A kubeconfig file with a token of this service account, bound to the Node
    /// object when one is named (as a token in a pod on that node is).
    ///
    /// # Errors
    /// The account or the node does not exist.
    pub async fn kubeconfig_for(
        &self,
        namespace: &str,
        account: &str,
        bound_node: Option<&str>,
    ) -> Result<PathBuf> {
        let bound = match bound_node {
            None => None,
            Some(name) => {
                let node = Api::<Node>::all(self.admin()?).get(name).await?;
                Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Node".into()),
                    name: Some(name.into()),
                    uid: node.metadata.uid,
                })
            }
        };
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: Vec::new(),
                bound_object_ref: bound,
                expiration_seconds: Some(TOKEN),
            },
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin()?, namespace);
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .with_context(|| format!("a token for service account {namespace}/{account}"))?;
        let token = answer
            .status
            .context("the token request has no status")?
            .token;
        let name = match bound_node {
            None => format!("kubeconfigs/{namespace}.{account}"),
            Some(node) => format!("kubeconfigs/{namespace}.{account}.{node}"),
        };
        let path = self.layout.at(&name);
        std::fs::write(&path, self.kubeconfig_with(&token)?)
            .with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    fn kubeconfig_with(&self, token: &str) -> Result<String> {
        let admin = Kubeconfig::read_from(self.kubeconfig())?;
        let ca = admin
            .clusters
            .into_iter()
            .find_map(|cluster| cluster.cluster?.certificate_authority_data)
            .context("the admin kubeconfig has no certificate authority")?;
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": {
                "server": self.api_url(),
                "certificate-authority-data": ca,
            }}],
            "users": [{"name": "account", "user": {"token": token}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "account"}}],
            "current-context": "local",
        })
        .to_string())
    }
}
