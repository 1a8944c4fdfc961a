//! Addresses of folders, and which of them this crate knows.

use std::path::PathBuf;

use crate::StoreError;

/// Where a store is, without what it takes to get there.
pub(crate) enum Address {
    /// A folder of this machine.
    Local(PathBuf),
    /// A folder of a web server.
    Http {
        /// Without the query string.
        shown: String,
        /// The same without `/` at its end.
        base: String,
        /// What stands behind `?`: a secret.
        query: Option<String>,
    },
    /// The objects of a container whose names begin with a prefix, which is empty or ends without `/`.
    #[cfg_attr(not(feature = "objects"), allow(dead_code, reason = "stores of objects alone need it"))]
    Objects {
        /// Whose they are.
        service: Service,
        /// Bucket or container.
        container: String,
        /// The folder in it.
        prefix: String,
    },
    /// A folder behind SSH.
    Sftp {
        /// Whose it is.
        login: Login,
        /// The folder: begins with `/`, or is relative to the home folder.
        root: String,
    },
}

/// Who signs in where by SSH. What is `None` is as in the user's configuration of `ssh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
}

/// A service that stores objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Amazon S3 and what speaks its protocol.
    S3,
    /// Azure Blob.
    Azure,
    /// Google Cloud Storage.
    Google,
    /// OpenStack Swift.
    Swift,
}

/// Whether `text` begins with a scheme this crate knows, as `s3://` is; everything else is a path on this
/// machine.
#[must_use]
pub fn is_address(text: &str) -> bool {
    scheme(text).is_some_and(|scheme| SCHEMES.contains(&scheme.as_str()))
}

const SCHEMES: [&str; 9] = ["file", "http", "https", "s3", "az", "gs", "swift", "sftp", "ssh"];

/// What stands before `://`, in lower case.
fn scheme(text: &str) -> Option<String> {
    let (scheme, _) = text.split_once("://")?;
    let known = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    (!scheme.is_empty() && scheme.chars().all(known)).then(|| scheme.to_ascii_lowercase())
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        let wrong = |problem: String| StoreError::Address { address: shown(text), problem };
        if text.is_empty() {
            return Err(wrong("an empty address; name a folder, as ./data".to_owned()));
        }
        let (Some(scheme), Some((_, rest))) = (scheme(text), text.split_once("://")) else {
            return Ok(Self::Local(PathBuf::from(text)));
        };
        match scheme.as_str() {
            "file" => {
                // file:///path and file://localhost/path (RFC 8089).
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                if !path.starts_with('/') {
                    return Err(wrong(
                        "it names another machine; write file:///path with three slashes".to_owned(),
                    ));
                }
                let path = decode(path)
                    .ok_or_else(|| wrong("what follows a % must be two hexadecimal digits".to_owned()))?;
                Ok(Self::Local(PathBuf::from(path)))
            }
            "http" | "https" => {
                let (place, query) =
                    rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
                let host = place.split('/').next().unwrap_or_default();
                if host.is_empty() {
                    return Err(wrong(format!("a host is missing; write {scheme}://host/path")));
                }
                if host.contains('@') {
                    return Err(wrong(
                        "a web address must hold no name and password: it would be written down".to_owned(),
                    ));
                }
                if text.contains('#') || text.contains(char::is_whitespace) || text.contains(char::is_control)
                {
                    return Err(wrong("`#` and blanks must be written as %23 and %20".to_owned()));
                }
                let shown = format!("{scheme}://{place}");
                let base = shown.trim_end_matches('/').to_owned();
                Ok(Self::Http { shown, base, query: query.map(str::to_owned) })
            }
            "s3" => objects(text, rest, Service::S3),
            "az" => objects(text, rest, Service::Azure),
            "gs" => objects(text, rest, Service::Google),
            "swift" => objects(text, rest, Service::Swift),
            "sftp" | "ssh" => sftp(text, rest),
            _ => Err(wrong(format!(
                "`{scheme}://` is not known; known: {}",
                SCHEMES.map(|known| format!("{known}://")).join(", ")
            ))),
        }
    }
}

/// `container/prefix`.
fn objects(text: &str, rest: &str, service: Service) -> Result<Address, StoreError> {
    let wrong =
        |problem: &str| Err(StoreError::Address { address: shown(text), problem: problem.to_owned() });
    let (container, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_end_matches('/');
    if container.is_empty() {
        return wrong("the name of the bucket or container is missing");
    }
    if container.contains('@') {
        return wrong("it must hold no name and password: credentials come from the environment");
    }
    if container.contains(|letter: char| !letter.is_alphanumeric() && !"-_.".contains(letter)) {
        return wrong("that is no name of a bucket or container: letters, digits, `-`, `_` and `.` are");
    }
    if let Some(problem) = path_problem(prefix).filter(|_| !prefix.is_empty()) {
        return wrong(&format!("what follows the bucket or container is no folder: {problem}"));
    }
    Ok(Address::Objects { service, container: container.to_owned(), prefix: prefix.to_owned() })
}

/// `user@host:port/path`; `/~/path` is in the home folder.
fn sftp(text: &str, rest: &str) -> Result<Address, StoreError> {
    let wrong =
        |problem: &str| Err(StoreError::Address { address: shown(text), problem: problem.to_owned() });
    let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, host) = place.rsplit_once('@').map_or((None, place), |(user, host)| (Some(user), host));
    if user.is_some_and(|user| user.contains(':')) {
        return wrong("it must hold no password: keys and the agent of `ssh` are used");
    }
    // [::1]:22 is an address of IPv6 and a port.
    let (host, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, port.strip_prefix(':').or(Some(""))),
        None => host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port))),
    };
    let port = match port.map(str::parse) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(port),
        Some(_) => return wrong("what follows the `:` of the host is no port"),
    };
    // What begins with a dash would be an option of `ssh`.
    let is_plain = |name: &str| {
        !name.is_empty()
            && !name.starts_with('-')
            && name.chars().all(|letter| letter.is_alphanumeric() || "-_.:%+".contains(letter))
    };
    if !is_plain(host) || user.is_some_and(|user| !is_plain(user)) {
        return wrong("that is no user and host; write sftp://user@host:port/path");
    }
    if path.contains(['\0', '\n']) {
        return wrong("the path has a control character");
    }
    let root = match path.strip_prefix('~') {
        Some(home) if home.is_empty() || home.starts_with('/') => home.trim_matches('/').to_owned(),
        _ => format!("/{}", path.trim_end_matches('/')),
    };
    let login = Login { user: user.map(str::to_owned), host: host.to_owned(), port };
    Ok(Address::Sftp { login, root })
}

/// An address without what may be a secret in it: what follows a `?`, and a password.
fn shown(text: &str) -> String {
    let (place, _) = text.split_once('?').unwrap_or((text, ""));
    let Some((scheme, rest)) = place.split_once("://") else { return place.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rsplit_once('@') {
        Some((user, host)) => {
            let (user, _) = user.split_once(':').unwrap_or((user, ""));
            format!("{scheme}://{user}@{host}{}", &rest[end..])
        }
        None => place.to_owned(),
    }
}

/// A path as it stands in a URL: everything but letters, digits, `-._~` and `/` as `%41`.
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

/// Takes `%41` back to `A`.
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

/// What is wrong with a path as that of a file in a store.
pub(crate) fn path_problem(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("it is empty");
    }
    if path.starts_with('/') {
        return Some("it begins with `/`");
    }
    if path.contains('\\') {
        return Some("it has a backslash");
    }
    if path.contains('\0') {
        return Some("it has a zero byte");
    }
    path.split('/').find_map(|part| match part {
        "" => Some("it has an empty part"),
        "." => Some("`.` is no name"),
        ".." => Some("`..` leads out of a folder"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_out_are_refused() {
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
    fn local_addresses() {
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
    fn objects_are_in_a_container_under_a_prefix() {
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
    fn folders_behind_ssh() {
        let login = |user: Option<&str>, host: &str, port| Login {
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
    fn web_addresses_keep_their_signature_to_themselves() {
        let Ok(Address::Http { shown, base, query }) = Address::parse("HTTPS://host:8443/a%20b/?sig=secret")
        else {
            panic!("no web address");
        };
        assert_eq!((shown.as_str(), base.as_str()), ("https://host:8443/a%20b/", "https://host:8443/a%20b"));
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
