//! Addresses of stores.

use std::path::PathBuf;

use crate::StoreError;

/// A parsed address of a store.
pub(crate) enum Address {
    /// A local folder.
    Local(PathBuf),
    /// A folder of a web server.
    Http {
        /// The URL without the query string.
        redacted: String,
        /// The URL without the query string and without a trailing `/`.
        base: String,
        /// The query string after `?`, which is secret.
        query: Option<String>,
    },
    /// The objects of a container below a prefix, which is empty or has no trailing `/`.
    #[cfg_attr(not(feature = "objects"), allow(dead_code, reason = "only used by object stores"))]
    Objects {
        /// The protocol.
        service: Service,
        /// The bucket or container.
        container: String,
        /// The folder in the container.
        prefix: String,
    },
    /// A folder on an SFTP server.
    Sftp {
        /// The user and server.
        login: SshLogin,
        /// The folder, absolute or relative to the home folder.
        root: String,
    },
}

/// The user, host and port of an SSH connection. `None` leaves the choice to the configuration of `ssh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SshLogin {
    pub(crate) user: Option<String>,
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
}

/// An object storage service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Amazon S3 and compatible services.
    S3,
    /// Azure Blob.
    Azure,
    /// Google Cloud Storage.
    Google,
    /// OpenStack Swift.
    Swift,
}

/// Returns whether `text` begins with a supported scheme such as `s3://`. Anything else is a local path.
#[must_use]
pub fn is_address(text: &str) -> bool {
    scheme(text).is_some_and(|scheme| SCHEMES.contains(&scheme.as_str()))
}

const SCHEMES: [&str; 9] = ["file", "http", "https", "s3", "az", "gs", "swift", "sftp", "ssh"];

/// The scheme before `://`, in lower case.
fn scheme(text: &str) -> Option<String> {
    let (scheme, _) = text.split_once("://")?;
    let known = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    (!scheme.is_empty() && scheme.chars().all(known)).then(|| scheme.to_ascii_lowercase())
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        let invalid = |problem: String| StoreError::Address { address: redacted(text), problem };
        if text.is_empty() {
            return Err(invalid("empty address; pass a folder such as ./data".to_owned()));
        }
        let (Some(scheme), Some((_, rest))) = (scheme(text), text.split_once("://")) else {
            return Ok(Self::Local(PathBuf::from(text)));
        };
        match scheme.as_str() {
            "file" => {
                // file:///path and file://localhost/path (RFC 8089).
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                if !path.starts_with('/') {
                    return Err(invalid(
                        "a `file` URL with a host is not supported; write file:///path".to_owned(),
                    ));
                }
                let path = decode(path)
                    .ok_or_else(|| invalid("`%` must be followed by two hexadecimal digits".to_owned()))?;
                Ok(Self::Local(PathBuf::from(path)))
            }
            "http" | "https" => {
                let (path, query) =
                    rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
                let host = path.split('/').next().unwrap_or_default();
                if host.is_empty() {
                    return Err(invalid(format!("missing host; write {scheme}://host/path")));
                }
                if host.contains('@') {
                    return Err(invalid(
                        "credentials in the URL are not allowed: the URL is logged".to_owned(),
                    ));
                }
                if text.contains('#') || text.contains(char::is_whitespace) || text.contains(char::is_control)
                {
                    return Err(invalid("write `#` as %23 and spaces as %20".to_owned()));
                }
                let redacted = format!("{scheme}://{path}");
                let base = redacted.trim_end_matches('/').to_owned();
                Ok(Self::Http { redacted, base, query: query.map(str::to_owned) })
            }
            "s3" => objects(text, rest, Service::S3),
            "az" => objects(text, rest, Service::Azure),
            "gs" => objects(text, rest, Service::Google),
            "swift" => objects(text, rest, Service::Swift),
            "sftp" | "ssh" => sftp(text, rest),
            _ => Err(invalid(format!(
                "unknown scheme `{scheme}://`; available: {}",
                SCHEMES.map(|known| format!("{known}://")).join(", ")
            ))),
        }
    }
}

/// Parses `container/prefix`.
fn objects(text: &str, rest: &str, service: Service) -> Result<Address, StoreError> {
    let invalid =
        |problem: &str| Err(StoreError::Address { address: redacted(text), problem: problem.to_owned() });
    let (container, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_end_matches('/');
    if container.is_empty() {
        return invalid("missing bucket or container");
    }
    if container.contains('@') {
        return invalid("credentials in the address are not allowed; set them in the environment");
    }
    if container.contains(|letter: char| !letter.is_alphanumeric() && !"-_.".contains(letter)) {
        return invalid("invalid bucket or container: only letters, digits, `-`, `_` and `.` are allowed");
    }
    if let Some(problem) = path_problem(prefix).filter(|_| !prefix.is_empty()) {
        return invalid(&format!("invalid folder in the bucket or container: {problem}"));
    }
    Ok(Address::Objects { service, container: container.to_owned(), prefix: prefix.to_owned() })
}

/// Parses `user@host:port/path`. `/~/path` is relative to the home folder.
fn sftp(text: &str, rest: &str) -> Result<Address, StoreError> {
    let invalid =
        |problem: &str| Err(StoreError::Address { address: redacted(text), problem: problem.to_owned() });
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, host) =
        authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    if user.is_some_and(|user| user.contains(':')) {
        return invalid("a password in the address is not allowed; `ssh` uses keys and its agent");
    }
    // [::1]:22 is an IPv6 address and a port.
    let (host, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, port.strip_prefix(':').or(Some(""))),
        None => host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port))),
    };
    let port = match port.map(str::parse) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(port),
        Some(_) => return invalid("invalid port"),
    };
    // `ssh` would parse a leading dash as an option.
    let is_valid = |name: &str| {
        !name.is_empty()
            && !name.starts_with('-')
            && name.chars().all(|letter| letter.is_alphanumeric() || "-_.:%+".contains(letter))
    };
    if !is_valid(host) || user.is_some_and(|user| !is_valid(user)) {
        return invalid("invalid user or host; write sftp://user@host:port/path");
    }
    if path.contains(['\0', '\n']) {
        return invalid("control character in the path");
    }
    let root = match path.strip_prefix('~') {
        Some(home) if home.is_empty() || home.starts_with('/') => home.trim_matches('/').to_owned(),
        _ => format!("/{}", path.trim_end_matches('/')),
    };
    let login = SshLogin { user: user.map(str::to_owned), host: host.to_owned(), port };
    Ok(Address::Sftp { login, root })
}

/// The address without a query string and without a password.
fn redacted(text: &str) -> String {
    let (address, _) = text.split_once('?').unwrap_or((text, ""));
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rsplit_once('@') {
        Some((user, host)) => {
            let (user, _) = user.split_once(':').unwrap_or((user, ""));
            format!("{scheme}://{user}@{host}{}", &rest[end..])
        }
        None => address.to_owned(),
    }
}

/// Percent-encodes a path: everything except ASCII letters, digits, `-._~` and `/`.
pub(crate) fn encode(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Decodes a percent-encoded text. `None` if it is malformed or not UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        bytes.push(u8::try_from(digit(0)? * 16 + digit(1)?).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

/// The reason why a path is invalid for a file in a store, if it is.
pub(crate) fn path_problem(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("it is empty");
    }
    if path.starts_with('/') {
        return Some("it begins with `/`");
    }
    if path.contains('\\') {
        return Some("it contains a backslash");
    }
    if path.contains('\0') {
        return Some("it contains a zero byte");
    }
    path.split('/').find_map(|part| match part {
        "" => Some("it has an empty component"),
        "." => Some("`.` is not allowed"),
        ".." => Some("`..` is not allowed"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_paths_outside_the_store() {
        for bad in
            ["", "/etc/passwd", "..", "a/../../b", "a/..", "./a", "a/./b", "a//b", "a/", "a\\..\\b", "a\0b"]
        {
            assert!(path_problem(bad).is_some(), "{bad:?}");
        }
        for good in ["a", "a/b.tar", ".hidden", "...", "a b/ü", "a..b/c"] {
            assert_eq!(path_problem(good), None, "{good:?}");
        }
    }

    #[test]
    fn parses_local_addresses() {
        let local = |text: &str| match Address::parse(text) {
            Ok(Address::Local(path)) => path.to_str().unwrap().to_owned(),
            _ => panic!("{text}"),
        };
        assert_eq!(local("data/train"), "data/train");
        assert_eq!(local("/data"), "/data");
        assert_eq!(local("file:///data/a%20b"), "/data/a b");
        assert_eq!(local("FILE://localhost/data"), "/data");
        for bad in ["", "file://server/share", "file:///a%2", "file:///a%zz", "gopher://host/x"] {
            assert!(Address::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn parses_container_and_prefix_of_object_stores() {
        for (text, expected) in [
            ("s3://bucket", (Service::S3, "bucket", "")),
            ("S3://bucket/", (Service::S3, "bucket", "")),
            ("az://pictures/train/2012/", (Service::Azure, "pictures", "train/2012")),
            ("gs://my.bucket/a b", (Service::Google, "my.bucket", "a b")),
            ("swift://container/x", (Service::Swift, "container", "x")),
        ] {
            let Ok(Address::Objects { service, container, prefix }) = Address::parse(text) else {
                panic!("{text}")
            };
            assert_eq!((service, container.as_str(), prefix.as_str()), expected, "{text}");
        }
        for bad in
            ["s3://", "s3:///a", "s3://b/../c", "s3://b//c", "s3://key:secret@bucket/x", "gs://b?secret=1"]
        {
            let Err(error) = Address::parse(bad) else { panic!("{bad}") };
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn parses_sftp_addresses() {
        let login = |user: Option<&str>, host: &str, port| SshLogin {
            user: user.map(str::to_owned),
            host: host.to_owned(),
            port,
        };
        for (text, expected, folder) in [
            ("sftp://host", login(None, "host", None), "/"),
            ("ssh://me@host:2222/data/train/", login(Some("me"), "host", Some(2222)), "/data/train"),
            ("sftp://host/~/data", login(None, "host", None), "data"),
            ("sftp://host/~", login(None, "host", None), ""),
            ("sftp://[::1]:22/x", login(None, "::1", Some(22)), "/x"),
            ("sftp://[fe80::1]/~x", login(None, "fe80::1", None), "/~x"),
        ] {
            let Ok(Address::Sftp { login, root }) = Address::parse(text) else { panic!("{text}") };
            assert_eq!((login, root.as_str()), (expected, folder), "{text}");
        }
        for bad in [
            "sftp://",
            "sftp:///x",
            "sftp://me:secret@host/x",
            "sftp://-oProxyCommand=x/y",
            "sftp://-l@host/",
            "sftp://host:0/",
            "sftp://host:x/",
            "sftp://[::1]22/",
            "sftp://a b/",
        ] {
            let Err(error) = Address::parse(bad) else { panic!("{bad}") };
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn web_addresses_and_errors_redact_the_signature() {
        let Ok(Address::Http { redacted, base, query }) =
            Address::parse("HTTPS://host:8443/a%20b/?sig=secret")
        else {
            panic!("not a web address");
        };
        assert_eq!(
            (redacted.as_str(), base.as_str()),
            ("https://host:8443/a%20b/", "https://host:8443/a%20b")
        );
        assert_eq!(query.as_deref(), Some("sig=secret"));
        for bad in [
            "http://",
            "http:///path",
            "https://me:secret@host/",
            "http://h/a b?secret",
            "http://h/#secret?secret",
        ] {
            let Err(error) = Address::parse(bad) else { panic!("{bad}") };
            assert!(
                !error.to_string().contains("?secret") && !error.to_string().contains(":secret"),
                "{error}"
            );
        }
        assert_eq!(encode("a b/ü#?%.tar"), "a%20b/%C3%BC%23%3F%25.tar");
        assert_eq!(decode(&encode("a b/ü#?%.tar")).as_deref(), Some("a b/ü#?%.tar"));
    }
}
