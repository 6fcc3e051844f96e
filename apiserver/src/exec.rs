//! Rules for `pods/exec`: which commands succeed in a simulated container, and what they print.
//!
//! ```text
//! redis-cli.*=OK        every command that begins with redis-cli prints OK, and exits with 0
//! ```

use std::str::FromStr;

use regex::Regex;

/// What a command prints in the containers of simulated Pods, where nothing runs. Without a rule for a command, `pods/exec` is
/// refused.
///
/// ```
/// use listwatch_apiserver::{ExecRule, Options};
///
/// let ping: ExecRule = "redis-cli.*=PONG".parse()?;
/// let down = ExecRule::new("pg_isready.*", "no response", 2)?;
/// let options = Options { exec: vec![ping, down], ..Options::default() };
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug)]
pub struct ExecRule {
    /// Matches a command, with its arguments separated by spaces.
    command: Regex,
    /// The standard output, without the last line break.
    pub(crate) output: String,
    pub(crate) exit_code: u8,
}

impl ExecRule {
    /// A rule for the commands that match a regular expression as a whole.
    ///
    /// # Errors
    ///
    /// If the regular expression cannot be parsed.
    pub fn new(command: &str, output: &str, exit_code: u8) -> Result<ExecRule, String> {
        let whole = Regex::new(&format!("^(?s:{command})$"));
        let command = whole.map_err(|error| format!("{command:?} is not a regular expression: {error}"))?;
        Ok(ExecRule { command, output: output.to_owned(), exit_code })
    }

    pub(crate) fn is_for(&self, command: &str) -> bool {
        self.command.is_match(command)
    }
}

/// `PATTERN=OUTPUT`: such commands exit with 0. The first `=` ends the pattern, so write `\x3d` for one in it.
impl FromStr for ExecRule {
    type Err = String;

    fn from_str(text: &str) -> Result<ExecRule, String> {
        let (command, output) =
            text.split_once('=').ok_or("is not PATTERN=OUTPUT, such as redis-cli.*=OK")?;
        ExecRule::new(command, output, 0)
    }
}
