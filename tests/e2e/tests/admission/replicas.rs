//! The two replicas, one of which may be down, and the counts of all their lifetimes. One ends only
//! while the other is ready.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_cluster::Part;
use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::service::Service;
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};

use crate::figures::Reviews;

const PATIENCE: Duration = Duration::from_mins(2);
/// As the chart has it.
const SHUTDOWN_DELAY: &str = "5s";
/// Longest wait for the end of a terminated replica.
const STOPPING: Duration = Duration::from_secs(40);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaEnd {
    /// SIGTERM, as when its pod is deleted, drained or rolled.
    Terminated,
    /// SIGKILL.
    Killed,
}

struct Replica {
    serves: SocketAddr,
    admin: SocketAddr,
    part: Option<Part>,
}

/// Both, behind their Service.
pub(crate) struct Replicas<'a> {
    stack: &'a Stack,
    both: [Replica; 2],
    service: Service,
    args: Vec<String>,
    program: PathBuf,
    /// Of replicas that have ended.
    counted: Reviews,
}

impl<'a> Replicas<'a> {
    pub(crate) async fn start(
        stack: &'a Stack,
        release: bool,
        [certificate, ca]: &[&str; 2],
    ) -> Result<Self> {
        let mut program = stack.program(Kind::Webhook);
        if release {
            let folder = program
                .parent()
                .and_then(Path::parent)
                .context("a directory")?;
            program = folder.join("release").join(Kind::Webhook.name());
            ensure!(
                program.is_file(),
                "no {}: make admission",
                program.display()
            );
        }
        let kubeconfig = stack.kubeconfig(Kind::Webhook).await?;
        // Where the webhook of the other scenarios is.
        let at = stack.cluster.part_address(3);
        let args = [
            ("--kubeconfig", kubeconfig.to_string_lossy().into_owned()),
            ("--url", stack.webhook_url()),
            ("--certificate-lifetime", (*certificate).to_owned()),
            ("--ca-lifetime", (*ca).to_owned()),
            ("--shutdown-delay", SHUTDOWN_DELAY.to_owned()),
        ];
        let args = args
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value]);
        let places = [(4, 5), (6, 8)].map(|(serves, admin)| {
            (
                stack.cluster.part_address(serves),
                stack.cluster.part_address(admin),
            )
        });
        let service = Service::start(at, &places).await?;
        stack.create_webhook_objects(&[]).await?;
        let mut replicas = Self {
            stack,
            both: places.map(|(serves, admin)| Replica {
                serves,
                admin,
                part: None,
            }),
            service,
            args: args.collect(),
            program,
            counted: Reviews::default(),
        };
        replicas.start_again().await?;
        Ok(replicas)
    }

    /// Starts the ones that are down, and waits until the Service has both.
    pub(crate) async fn start_again(&mut self) -> Result<()> {
        for (index, one) in self.both.iter_mut().enumerate() {
            if one.part.is_some() {
                continue;
            }
            let (serves, admin) = (one.serves.to_string(), one.admin.to_string());
            let mut args = vec!["--listen", &serves, "--admin-listen", &admin];
            args.extend(self.args.iter().map(String::as_str));
            let name = format!("aliquot-webhook-{index}");
            let cluster = &self.stack.cluster;
            let part = cluster.start_part(&name, &self.program, &args, &[])?;
            one.part = Some(part);
        }
        eventually(PATIENCE, "both replicas to be ready", || async {
            for one in &self.both {
                one.part.as_ref().map_or(Ok(()), Part::check)?;
            }
            let ready = self.service.ready();
            until!(ready == 2, "{ready} of 2");
            Ok(Some(()))
        })
        .await
    }

    pub(crate) async fn end_one(&mut self, how: ReplicaEnd, index: usize) -> Result<()> {
        let one = &mut self.both[index];
        self.counted.add(&Reviews::read(one.admin).await?);
        let part = one.part.take().context("it runs")?;
        match how {
            ReplicaEnd::Killed => part.kill().await,
            ReplicaEnd::Terminated => {
                let code = part.terminate(STOPPING).await?;
                ensure!(code == Some(0), "the replica ended with {code:?}");
                Ok(())
            }
        }
    }

    /// Ends both. Returns all counts, except those of the moments before a kill.
    pub(crate) async fn finish(mut self) -> Result<Reviews> {
        for one in &self.both {
            self.counted.add(&Reviews::read(one.admin).await?);
        }
        for part in self.both.iter_mut().filter_map(|one| one.part.take()) {
            part.terminate(STOPPING).await?;
        }
        Ok(self.counted)
    }
}
