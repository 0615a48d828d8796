//! Place of objects, and the settings of the AWS tools: region, endpoint, credentials.

use std::{
    collections::HashMap,
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use rusty_s3::Credentials;

use crate::{
    failure::{Failure, Reason},
    support::regular_file::{self, Links},
};

/// `s3://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub bucket: String,
    /// Without slashes at both ends; can be empty.
    pub prefix: String,
}

impl FromStr for Location {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let place = text.strip_prefix("s3://").ok_or("not s3://BUCKET/PREFIX")?;
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        if bucket.is_empty() {
            return Err("no bucket");
        }
        Ok(Self {
            bucket: bucket.to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
        })
    }
}

impl Location {
    /// The name of an object.
    pub fn key(&self, path: &str) -> String {
        match self.prefix.as_str() {
            "" => path.to_owned(),
            prefix => format!("{prefix}/{path}"),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.prefix)
    }
}

/// What the AWS tools read from their variables and files.
#[derive(Debug)]
pub struct Settings {
    pub credentials: Credentials,
    pub region: String,
    /// Of a server other than Amazon's.
    pub endpoint: Option<String>,
}

impl Settings {
    /// Those of this process.
    ///
    /// # Errors
    ///
    /// As [`Settings::read`].
    pub fn of_environment() -> Result<Self, Failure> {
        let variable = |name: &str| std::env::var(name).ok();
        Self::read(variable, |path| {
            regular_file::read_to_string(path, Links::Followed)
        })
    }

    /// Reads them. `environment` gives the values of variables, `read` the texts of files.
    ///
    /// # Errors
    ///
    /// When there are no credentials, or a file cannot be read.
    pub fn read(
        environment: impl Fn(&str) -> Option<String>,
        read: impl Fn(&Path) -> io::Result<String>,
    ) -> Result<Self, Failure> {
        let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
        let profile = variable("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
        let file = |name: &str, default: &str| {
            let path = variable(name).map(PathBuf::from).or_else(|| {
                let home = PathBuf::from(variable("HOME")?);
                Some(home.join(".aws").join(default))
            });
            let Some(path) = path else {
                return Ok(HashMap::new());
            };
            match read(&path) {
                Ok(text) => Ok(section(&text, &profile)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(HashMap::new()),
                Err(error) => {
                    let message = format!("cannot read {}: {error}", path.display());
                    Err(Failure::new(Reason::Usage, message))
                }
            }
        };
        let shared = file("AWS_SHARED_CREDENTIALS_FILE", "credentials")?;
        let config = file("AWS_CONFIG_FILE", "config")?;
        let of_file = |key: &str| shared.get(key).or_else(|| config.get(key)).cloned();
        let of_environment = variable("AWS_ACCESS_KEY_ID")
            .zip(variable("AWS_SECRET_ACCESS_KEY"))
            .map(|pair| (pair, variable("AWS_SESSION_TOKEN")));
        let credentials = of_environment.or_else(|| {
            let pair = of_file("aws_access_key_id").zip(of_file("aws_secret_access_key"))?;
            Some((pair, of_file("aws_session_token")))
        });
        let Some(((key, secret), token)) = credentials else {
            let message = format!(
                "no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or add profile \
                 `{profile}` to ~/.aws/credentials (`aws configure export-credentials --format env` prints \
                 those of a role)"
            );
            return Err(Failure::new(Reason::Usage, message));
        };
        let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
        Ok(Self {
            credentials: match token {
                Some(token) => Credentials::new_with_token(key, secret, token),
                None => Credentials::new(key, secret),
            },
            region: region
                .or_else(|| of_file("region"))
                .unwrap_or_else(|| "us-east-1".to_owned()),
            endpoint: variable("AWS_ENDPOINT_URL_S3")
                .or_else(|| variable("AWS_ENDPOINT_URL"))
                .or_else(|| of_file("endpoint_url")),
        })
    }
}

/// The entries of a profile in a file of the AWS tools. Entries of a nested table are indented.
fn section(text: &str, profile: &str) -> HashMap<String, String> {
    let mut entries = HashMap::new();
    let mut is_inside = false;
    for line in text.lines() {
        if let Some(name) = line.trim().strip_prefix('[') {
            let name = name.split(']').next().unwrap_or_default().trim();
            is_inside = name.strip_prefix("profile ").unwrap_or(name).trim() == profile;
        } else if is_inside
            && !line.starts_with([' ', '\t', '#', ';'])
            && let Some((key, value)) = line.split_once('=')
        {
            entries.insert(key.trim().to_lowercase(), value.trim().to_owned());
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations() {
        let location = |text: &str| text.parse::<Location>();
        let deep = location("s3://bucket/a/b/").expect("valid");
        assert_eq!(
            (deep.bucket.as_str(), deep.prefix.as_str()),
            ("bucket", "a/b")
        );
        assert_eq!(deep.key("run/run.json"), "a/b/run/run.json");
        assert_eq!(location("s3://bucket").expect("valid").key("x"), "x");
        for invalid in ["bucket/a", "https://bucket", "s3://", "s3:///a"] {
            assert!(location(invalid).is_err(), "{invalid}");
        }
    }

    fn settings(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Result<Settings, Failure> {
        let find = |list: &[(&str, &str)], name: &str| {
            let found = list.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::read(
            |name| find(variables, name),
            |path| {
                let text = find(files, path.to_str().expect("UTF-8"));
                text.ok_or_else(|| io::ErrorKind::NotFound.into())
            },
        )
    }

    const CREDENTIALS: &str = "# a comment\n[default]\naws_access_key_id = A\naws_secret_access_key=B=\n\
                               [lab]\naws_access_key_id=C\naws_secret_access_key=D\naws_session_token=E\n";
    const CONFIG: &str = "[default]\nregion = eu-west-1\n[profile lab]\nregion=local\n\
                          endpoint_url = http://host:9000\ns3 =\n  endpoint_url = http://other\n";

    #[test]
    fn variables_take_precedence_over_files() {
        let files = [
            ("/home/me/.aws/credentials", CREDENTIALS),
            ("/etc/aws", CONFIG),
        ];
        let home = [("HOME", "/home/me"), ("AWS_CONFIG_FILE", "/etc/aws")];
        let of_file = settings(&home, &files).expect("credentials");
        assert_eq!(of_file.credentials.key(), "A");
        assert_eq!(of_file.credentials.secret(), "B=");
        assert_eq!(
            (of_file.region.as_str(), of_file.endpoint),
            ("eu-west-1", None)
        );
        let lab = [&home[..], &[("AWS_PROFILE", "lab")]].concat();
        let of_lab = settings(&lab, &files).expect("credentials");
        assert_eq!(of_lab.credentials.token(), Some("E"));
        assert_eq!(of_lab.endpoint.as_deref(), Some("http://host:9000"));
        let keys = [
            ("AWS_ACCESS_KEY_ID", "K"),
            ("AWS_SECRET_ACCESS_KEY", "S"),
            ("AWS_REGION", "r"),
            ("AWS_SESSION_TOKEN", ""),
        ];
        let of_variables = settings(&[&lab[..], &keys].concat(), &files).expect("credentials");
        assert_eq!(of_variables.credentials.key(), "K");
        assert_eq!(of_variables.credentials.token(), None);
        assert_eq!(of_variables.region, "r");
    }

    #[test]
    fn missing_credentials_are_explained() {
        let failure = settings(&[("HOME", "/root"), ("AWS_PROFILE", "lab")], &[]);
        let message = failure.expect_err("no credentials").message;
        assert!(message.contains("profile `lab`"), "{message}");
    }
}
