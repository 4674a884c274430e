//! The users that act in a container, with no more rights than a runtime leaves to a tenant by
//! default.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{RunningClient, TestContainer, client, lines};

/// A user in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantUser {
    /// Root with the capabilities that runtimes leave by default.
    Root,
    /// `runAsUser: 1000`, with `fsGroup: 2000`.
    User,
    /// Root of a user namespace (`hostUsers: false`).
    UserNamespaceRoot,
}

/// All users.
pub const TENANT_USERS: [TenantUser; 3] = [
    TenantUser::Root,
    TenantUser::User,
    TenantUser::UserNamespaceRoot,
];

/// The capabilities that runtimes leave to a container.
const CAPABILITIES: &str = "--bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+kill,\
    +setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap";

impl TenantUser {
    fn arguments(self) -> Vec<&'static str> {
        let mut arguments = vec!["setpriv", CAPABILITIES, "--inh-caps=-all"];
        arguments.extend(match self {
            Self::Root => vec![],
            Self::User => vec!["--reuid=1000", "--regid=1000", "--groups=2000"],
            Self::UserNamespaceRoot => vec![
                "--reuid=100000",
                "--regid=100000",
                "--clear-groups",
                "unshare",
                "--user",
                "--map-root-user",
            ],
        });
        arguments
    }
}

impl TestContainer {
    /// The output of a user's shell for `script`, whose `$client` is the client.
    pub fn shell_as(&self, tenant: TenantUser, script: &str) -> Result<Vec<String>> {
        let output = self.shell_command(tenant, script).output()?;
        ensure!(output.status.success(), "{tenant:?} {script}: {output:?}");
        Ok(lines(&output))
    }

    /// Starts the shell of [`Self::shell_as`] with a client that ends with `ready hold`; its
    /// answers so far.
    pub fn start_shell_as(&self, tenant: TenantUser, script: &str) -> Result<RunningClient> {
        RunningClient::start(&mut self.shell_command(tenant, script))
    }

    fn shell_command(&self, tenant: TenantUser, script: &str) -> Command {
        let script = format!("set -eu\nclient={}\n{script}", client());
        let mut arguments = tenant.arguments();
        arguments.extend(["sh", "-c", &script]);
        self.command(&arguments)
    }
}
