//! Parts under test (scheduler, webhook, device plugin) as processes beside the
//! cluster: logged with it, and ended with it whatever happens to the owner.

use std::path::Path;
use std::process::Child;

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal};

use crate::cluster::Cluster;
use crate::daemons::end;
use crate::layout::Layout;
use crate::process::{self, Program};

/// A running part; killed when dropped.
#[derive(Debug)]
pub struct Part {
    name: String,
    layout: Layout,
    child: Mutex<Child>,
    left_running: bool,
}

impl Cluster {
    /// Starts a part. Output goes to the end of `log/part-NAME.log`.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start_part(
        &self,
        name: &str,
        program: &Path,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Part> {
        self.start_program(name, Program::new(program, args.iter().copied()), env)
    }

    /// Starts a part in the node's mount namespace, where the container runtime sees its mounts.
    ///
    /// # Errors
    /// There is no node, or the program cannot be started.
    pub fn start_part_on_node(
        &self,
        name: &str,
        program: &Path,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Part> {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        self.start_program(name, self.inside(program, args)?, env)
    }

    fn start_program(
        &self,
        name: &str,
        mut program: Program,
        env: &[(&str, &str)],
    ) -> Result<Part> {
        let name = format!("part-{name}");
        program.env = env
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let child = Mutex::new(process::spawn(&self.layout, &name, program)?);
        Ok(Part {
            name,
            layout: self.layout.clone(),
            child,
            left_running: false,
        })
    }
}

impl Part {
    /// Kills it (-9) and waits for its end.
    ///
    /// # Errors
    /// It cannot be killed.
    pub async fn kill(mut self) -> Result<()> {
        end(self.child.get_mut(), &self.name).await
    }

    /// Lets it run on after this value and this process are gone, until the cluster
    /// ends.
    pub fn leave_running(mut self) {
        self.left_running = true;
    }

    /// Asks it to end (SIGTERM) and waits until it has; its exit code.
    ///
    /// # Errors
    /// It does not end within `deadline`.
    pub async fn terminate(self, deadline: std::time::Duration) -> Result<Option<i32>> {
        let pid = i32::try_from(self.child.lock().id())
            .ok()
            .and_then(Pid::from_raw);
        rustix::process::kill_process(pid.context("no such pid")?, Signal::TERM)?;
        let what = format!("the end of {} after SIGTERM", self.name);
        let status = crate::wait::eventually(deadline, &what, || async {
            Ok(self.child.lock().try_wait()?)
        });
        Ok(status.await?.code())
    }

    /// An error with the log's end when it is no longer running.
    ///
    /// # Errors
    /// It has ended.
    pub fn check(&self) -> Result<()> {
        match self.child.lock().try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}:\n{}", self.name, self.log_tail()),
        }
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        process::tail(&self.layout, &self.name)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.lock().id()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        if !self.left_running && child.kill().is_ok() {
            let _ended = child.wait();
        }
    }
}
