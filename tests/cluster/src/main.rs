//! `aliquot-cluster`: a cluster for a hand, the Makefile and the demo.
//! Thin: arguments in, library calls, text out.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::path::PathBuf;

use aliquot_cluster::{Builder, Cluster};
use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// A real Kubernetes cluster on this machine, from Go modules.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a cluster that stays until `down`; one that is there is taken down first.
    Up {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        form: Form,
    },
    /// Start a cluster that ends with this command (or with its standard input).
    Hold {
        /// The state folder; default: a new one under /tmp.
        #[arg(long)]
        state: Option<PathBuf>,
        #[command(flatten)]
        form: Form,
    },
    /// End a cluster and everything on it; nothing to do is fine.
    Down {
        #[command(flatten)]
        place: Place,
    },
    /// Print shell lines that set KUBECONFIG, KUBECTL and the node's folders.
    Env {
        #[command(flatten)]
        place: Place,
    },
    /// Print the path of a kubeconfig with a token of a service account.
    Token {
        #[command(flatten)]
        place: Place,
        /// The account's namespace.
        #[arg(long, short)]
        namespace: String,
        /// The account.
        account: String,
        /// Bind the token to this Node object.
        #[arg(long)]
        node: Option<String>,
    },
    /// Start a program that ends with the cluster; its log is log/part-NAME.log.
    Run {
        #[command(flatten)]
        place: Place,
        /// Its name.
        name: String,
        /// Program and arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct Place {
    /// The state folder.
    #[arg(long)]
    state: PathBuf,
}

#[derive(Debug, Args)]
struct Form {
    /// With a real node: containerd and kubelet (root).
    #[arg(long)]
    node: bool,
    /// The node's name.
    #[arg(long, default_value = "node-1", requires = "node")]
    node_name: String,
    /// The extender that kube-scheduler calls; `own` for the cluster's own port.
    #[arg(long)]
    extender: Option<String>,
}

impl Form {
    fn builder(&self) -> Builder {
        let builder = Cluster::control_plane();
        let builder = if self.node {
            builder.node_name(&self.node_name)
        } else {
            builder
        };
        match self.extender.as_deref() {
            None => builder,
            Some("own") => builder.extender(),
            Some(url) => builder.extender_url(url),
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Up { place, form } => {
            let builder = form.builder().state(&place.state).detached();
            let cluster = Box::pin(builder.start()).await?;
            print!("{}", environment(&cluster));
        }
        Command::Hold { state, form } => {
            let builder = match state {
                Some(state) => form.builder().state(&state),
                None => form.builder(),
            };
            let cluster = Box::pin(builder.start()).await?;
            print!("{}", environment(&cluster));
            let until_closed = || std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            tokio::task::spawn_blocking(until_closed).await??;
            cluster.stop().await?;
        }
        Command::Down { place } => Cluster::stop_at(&place.state).await?,
        Command::Env { place } => print!("{}", environment(&Cluster::attach(&place.state).await?)),
        Command::Token {
            place,
            namespace,
            account,
            node,
        } => {
            let cluster = Cluster::attach(&place.state).await?;
            let path = cluster
                .kubeconfig_for(&namespace, &account, node.as_deref())
                .await?;
            println!("{}", path.display());
        }
        Command::Run {
            place,
            name,
            command,
        } => {
            let cluster = Cluster::attach(&place.state).await?;
            let args: Vec<&str> = command[1..].iter().map(String::as_str).collect();
            let part = cluster.start_part(&name, command[0].as_ref(), &args, &[])?;
            println!("{}", part.pid());
            part.leave_running();
        }
    }
    Ok(())
}

fn environment(cluster: &Cluster) -> String {
    let lines = [
        ("KUBECONFIG", cluster.kubeconfig().display().to_string()),
        (
            "KUBECTL",
            format!("'{} kubectl'", cluster.binaries().join("kubebox").display()),
        ),
        ("ALIQUOT_STATE", cluster.state_dir().display().to_string()),
        ("ALIQUOT_EXTENDER", cluster.extender_address().to_string()),
        (
            "ALIQUOT_KUBELET_DIR",
            cluster.kubelet_dir().display().to_string(),
        ),
        ("ALIQUOT_CDI_DIR", cluster.cdi_dir().display().to_string()),
    ];
    lines
        .map(|(name, value)| format!("export {name}={value}\n"))
        .concat()
}
