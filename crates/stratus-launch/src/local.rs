//! The kind `local`: this machine, in a separate folder.

use crate::Result;
use crate::shell::Shell;
use std::process::Command;

pub(crate) struct LocalShell {
    pub(crate) name: String,
}

impl Shell for LocalShell {
    fn name(&self) -> &str {
        &self.name
    }

    fn command(&self, line: &str) -> Result<Command> {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        Ok(command)
    }
}
