//! Who acts in a container: the rights that a runtime leaves to a tenant.
//!
//! Fed by: tests. Must not: give a tenant more than a runtime's defaults.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use crate::{Container, Running, client, lines};

/// A tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenant {
    /// Root with the capabilities that runtimes leave by default.
    Root,
    /// `runAsUser: 1000`, with `fsGroup: 2000`.
    User,
    /// Root of a user namespace (`hostUsers: false`).
    RootOfUsers,
}

/// All of them.
pub const TENANTS: [Tenant; 3] = [Tenant::Root, Tenant::User, Tenant::RootOfUsers];

/// What runtimes leave to a container.
const CAPABILITIES: &str = "--bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+kill,\
    +setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap";

impl Tenant {
    fn words(self) -> Vec<&'static str> {
        let mut words = vec!["setpriv", CAPABILITIES, "--inh-caps=-all"];
        words.extend(match self {
            Self::Root => vec![],
            Self::User => vec!["--reuid=1000", "--regid=1000", "--groups=2000"],
            Self::RootOfUsers => vec![
                "--reuid=100000",
                "--regid=100000",
                "--clear-groups",
                "unshare",
                "--user",
                "--map-root-user",
            ],
        });
        words
    }
}

impl Container {
    /// A command as that tenant.
    pub fn command_as(&self, tenant: Tenant, words: &[&str]) -> Command {
        let mut all = tenant.words();
        all.extend(words);
        self.command(&all)
    }

    /// What the client of that tenant answers; it must end well.
    pub fn client_as(&self, tenant: Tenant, commands: &[&str]) -> Result<Vec<String>> {
        let client = client();
        let mut words = vec!["python3", client.as_str()];
        words.extend(commands);
        let output = self.command_as(tenant, &words).output()?;
        ensure!(
            output.status.success(),
            "{tenant:?} {commands:?}: {output:?}"
        );
        Ok(lines(&output))
    }

    /// What a tenant's shell says to `script`, whose `$client` is the client.
    pub fn shell_as(&self, tenant: Tenant, script: &str) -> Result<Vec<String>> {
        let output = self.shell_command(tenant, script).output()?;
        ensure!(output.status.success(), "{tenant:?} {script}: {output:?}");
        Ok(lines(&output))
    }

    /// The shell of [`Self::shell_as`] with a client that ends with `ready hold`; its answers so
    /// far.
    pub fn start_shell_as(&self, tenant: Tenant, script: &str) -> Result<Running> {
        let mut shell = self.shell_command(tenant, script);
        Running::start(shell.stdin(Stdio::piped()).stdout(Stdio::piped()))
    }

    fn shell_command(&self, tenant: Tenant, script: &str) -> Command {
        let script = format!("set -eu\nclient={}\n{script}", client());
        self.command_as(tenant, &["sh", "-c", &script])
    }
}
