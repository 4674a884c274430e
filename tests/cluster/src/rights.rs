//! The rights of the product's parts, for parts that run as processes: exactly those of
//! `charts/aliquot/templates/rbac.yaml`.

use anyhow::Result;
use serde_json::{Value, json};

use crate::chart;
use crate::cluster::Cluster;

const TEMPLATE: &str = "templates/rbac.yaml";

impl Cluster {
    /// Makes the product's namespace with the service accounts and rights of its parts.
    ///
    /// # Errors
    /// The chart cannot be rendered, or the API server refuses something of it.
    pub async fn install_rights(&self) -> Result<()> {
        self.install_rights_with(&[]).await
    }

    /// The same where some of the chart's values are others.
    ///
    /// # Errors
    /// The same.
    pub async fn install_rights_with(&self, values: &[(String, Value)]) -> Result<()> {
        let name = chart::NAMESPACE;
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let rights = chart::rendered(TEMPLATE, values)?;
        let file = self.layout.text("rights.yaml");
        // A kubectl of 1.30 takes a file that begins with a brace for JSON.
        std::fs::write(&file, format!("---\n{namespace}\n---\n{rights}"))?;
        self.kubectl(&["apply", "-f", &file]).await?.success()?;
        Ok(())
    }
}
