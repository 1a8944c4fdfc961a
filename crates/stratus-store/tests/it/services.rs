//! Services that store objects, played by a server on the loopback interface: how they are asked, who signs
//! in where, and what is shown of their refusals. Credentials are environment variables, so each test runs in
//! a process of its own: this program again.

use std::env;
use std::process::Command;
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::web::{Asked, Reply, Server, brief, content};
use stratus_store::{RetryPolicy, Store, StoreError};

/// Set for a process that a test has started.
const ADDRESS: &str = "STRATUS_STORE_TEST_ADDRESS";

/// What no message may hold.
const SECRET: &str = "c2VjcmV0LWtleS10aGF0LW5vYm9keS1zZWVz";

/// Runs this test again with these variables, of which the others of their kind are unset.
fn again(test: &str, address: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(env::current_exe().unwrap());
    for (name, _) in env::vars() {
        if ["AWS_", "AZURE_", "AZBLOB_", "GOOGLE_", "GS_", "OS_", "ST_", "STORAGE_"]
            .iter()
            .any(|kind| name.starts_with(kind))
        {
            command.env_remove(name);
        }
    }
    // A test is named with its module: without it, none would run.
    let test = format!("services::{test}");
    command.args(["--exact", &test, "--nocapture"]).env(ADDRESS, address).env("HOME", "/nowhere");
    let status = command.envs(variables.iter().copied()).status().unwrap();
    assert!(status.success(), "{test} in a process of its own");
}

fn store() -> Option<Store> {
    let address = env::var(ADDRESS).ok()?;
    let retry_policy =
        if env::var_os("STRATUS_STORE_TEST_PATIENT").is_some() { RetryPolicy::default() } else { brief() };
    Some(Store::open_with(&address, retry_policy).unwrap())
}

fn host(server: &Server) -> String {
    server.address.trim_end_matches("/data").to_owned()
}

/// Reads a file of 1000 bytes as a user would.
fn reads(store: &Store) {
    assert_eq!(store.bytes("a/b.bin").unwrap(), Some(1000));
    assert_eq!(store.read("a/b.bin", 1000).unwrap(), content(1000));
    let mut part = [0; 10];
    store.read_at("a/b.bin", 500, &mut part).unwrap();
    assert_eq!(part, content(1000)[500..510]);
}

/// Asks for what is refused.
fn is_refused(store: &Store, variable: &str) {
    let began = Instant::now();
    let errors = [
        store.bytes("a").unwrap_err(),
        store.read_at("a", 0, &mut [0]).unwrap_err(),
        store.list("").unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains(SECRET) && !text.contains("Signature=") && text.contains(variable), "{text}");
        assert!(text.contains(store.address()), "{text}");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "a refusal is final: {:?}", began.elapsed());
}

/// A store whose address ends so can be read.
fn reads_or_is_refused(store: &Store, variable: &str) {
    if store.address().ends_with("open") {
        reads(store);
    } else {
        is_refused(store, variable);
    }
}

/// As object stores do, it repeats what it was sent, and what it knows.
fn refusal(asked: &Asked) -> Reply {
    let sent = asked.headers.join(" ");
    Reply::Status(
        403,
        format!(
            "<Error><Code>SignatureDoesNotMatch</Code><Message>{SECRET} {sent} {}</Message></Error>",
            asked.path
        ),
    )
}

#[test]
fn s3_is_signed_and_its_refusals_tell_no_secret() {
    if let Some(store) = store() {
        return reads_or_is_refused(&store, "AWS_SECRET_ACCESS_KEY");
    }
    let server = Server::start(content(1000), |asked| match asked.path.split(['/', '?']).nth(1) {
        Some("bucket") => Reply::Serve,
        _ => refusal(asked),
    });
    let (host, test) = (host(&server), "s3_is_signed_and_its_refusals_tell_no_secret");
    let keys = [("AWS_ACCESS_KEY_ID", "the-id"), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_REGION", "eu-1")];
    let endpoint = ("AWS_ENDPOINT_URL_S3", host.as_str());
    again(test, "s3://bucket/open", &[keys.as_slice(), &[endpoint]].concat());
    for asked in server.asked() {
        assert_eq!(asked.path, "/bucket/open/a/b.bin");
        let signature = asked.header("Authorization").unwrap();
        assert!(
            signature.contains("Credential=the-id/") && signature.contains("/eu-1/s3/aws4_request"),
            "{signature}"
        );
    }
    again(test, "s3://closed", &[keys.as_slice(), &[endpoint]].concat());
    // Nothing to sign with, and nothing that is not to be signed.
    again(test, "s3://closed/x", &[endpoint, ("AWS_EC2_METADATA_DISABLED", "true")]);
    let before = server.asked().len();
    again(test, "s3://bucket/open", &[endpoint, ("AWS_NO_SIGN_REQUEST", "YES")]);
    assert!(server.asked()[before..].iter().all(|asked| asked.header("Authorization").is_none()));
}

#[test]
fn many_threads_read_at_once() {
    const THREADS: usize = 6;
    if let Some(store) = store() {
        return thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| assert_eq!(store.read("a", 1000).unwrap(), content(1000)));
            }
        });
    }
    // Content is only given once every thread has asked for it.
    let (waiting, all_there) = (Mutex::new(0), Condvar::new());
    let server = Server::start(content(1000), move |asked| {
        if asked.method == "GET" {
            let mut waiting = waiting.lock().unwrap();
            *waiting += 1;
            all_there.notify_all();
            let too_few = |waiting: &mut usize| *waiting < THREADS;
            let waited = all_there.wait_timeout_while(waiting, Duration::from_secs(20), too_few).unwrap();
            if waited.1.timed_out() {
                return Reply::Status(403, "one after the other".to_owned());
            }
        }
        Reply::Serve
    });
    let host = host(&server);
    let variables =
        [("AWS_ENDPOINT_URL", host.as_str()), ("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", SECRET)];
    // The others wait longer for the first answer than tests usually have patience.
    again(
        "many_threads_read_at_once",
        "s3://bucket",
        &[&variables[..], &[("STRATUS_STORE_TEST_PATIENT", "1")]].concat(),
    );
}

#[test]
fn azure_is_signed_and_its_refusals_tell_no_secret() {
    if let Some(store) = store() {
        return reads_or_is_refused(&store, "AZURE_STORAGE_KEY");
    }
    let server = Server::start(content(1000), |asked| match asked.path.contains("/pictures/") {
        true => Reply::Serve,
        false => refusal(asked),
    });
    let (host, test) = (host(&server), "azure_is_signed_and_its_refusals_tell_no_secret");
    let connection = format!("AccountName=me;AccountKey={SECRET};BlobEndpoint={host}/me");
    for variables in [
        &[("AZURE_STORAGE_CONNECTION_STRING", connection.as_str())][..],
        &[
            ("AZURE_STORAGE_ACCOUNT", "me"),
            ("AZURE_STORAGE_KEY", SECRET),
            ("AZURE_STORAGE_SERVICE_ENDPOINT", &host),
        ],
    ] {
        let before = server.asked().len();
        again(test, "az://pictures/open", variables);
        for asked in &server.asked()[before..] {
            assert!(asked.path.ends_with("/pictures/open/a/b.bin"), "{}", asked.path);
            assert!(asked.header("Authorization").unwrap().starts_with("SharedKey me:"));
        }
        again(test, "az://closed", variables);
    }
}

#[test]
fn google_is_asked_for_objects_and_their_sizes() {
    if let Some(store) = store() {
        return reads(&store);
    }
    let server = Server::start(content(1000), |asked| {
        let is_known = asked.path.contains("/open%2Fa%2Fb.bin") || asked.path.ends_with("/open/a/b.bin");
        match asked.path.contains("alt=media") || asked.first.is_some() {
            _ if !is_known => Reply::Status(404, "no such object".to_owned()),
            true => Reply::Serve,
            false => {
                let about = r#"{"size":"1000","etag":"x","updated":"2026-01-01T00:00:00Z",
                    "md5Hash":"","contentType":"image/x"}"#;
                Reply::Page("Content-Type: application/json\r\n".to_owned(), about.to_owned())
            }
        }
    });
    let variables = [("STORAGE_EMULATOR_HOST", host(&server)), ("GS_NO_SIGN_REQUEST", "YES".to_owned())];
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    again("google_is_asked_for_objects_and_their_sizes", "gs://bucket/open", &variables);
    assert!(server.asked().iter().all(|asked| asked.header("Authorization").is_none()));
}

#[test]
fn keystone_gives_tokens_and_new_ones_when_they_expire() {
    if let Some(store) = store() {
        return reads_or_is_refused(&store, "OS_PASSWORD");
    }
    let server = Server::start(content(1000), |asked| {
        if asked.path == "/v3/auth/tokens" {
            if !asked.body.contains(&format!(r#""password":"{SECRET}""#)) {
                return Reply::Status(401, format!("<p>this is wrong: {}</p>", asked.body));
            }
            let host = asked.header("Host").unwrap();
            let endpoint = |interface: &str, region: &str, path: &str| {
                format!(r#"{{"interface":"{interface}","region":"{region}","url":"http://{host}/{path}"}}"#)
            };
            let endpoints = [
                endpoint("internal", "north", "wrong"),
                endpoint("public", "south", "wrong"),
                endpoint("public", "north", "v1/AUTH_p/"),
            ];
            let catalogue = format!(
                r#"{{"token":{{"catalog":[{{"type":"compute","endpoints":[]}},
                    {{"type":"object-store","endpoints":[{}]}}]}}}}"#,
                endpoints.join(",")
            );
            return Reply::Page(format!("X-Subject-Token: token-{}\r\n", asked.earlier), catalogue);
        }
        // The first token is good for one request, the second one for all.
        match (asked.header("X-Auth-Token"), asked.earlier) {
            (Some("token-0"), 1) | (Some("token-3"), _) => Reply::Serve,
            _ => Reply::Status(401, "<html><h1>Unauthorized</h1><p>expired</p></html>".to_owned()),
        }
    });
    let (host, test) = (host(&server), "keystone_gives_tokens_and_new_ones_when_they_expire");
    let variables = |password| {
        [
            ("OS_AUTH_URL", host.as_str()),
            ("OS_USERNAME", "me"),
            ("OS_PASSWORD", password),
            ("OS_PROJECT_NAME", "pictures"),
            ("OS_PROJECT_DOMAIN_NAME", "Physics"),
            ("OS_REGION_NAME", "north"),
        ]
    };
    again(test, "swift://container/open", &variables(SECRET));
    let asked = server.asked();
    assert!(
        asked[0].body.contains(r#""project":{"domain":{"name":"Physics"},"name":"pictures"}"#),
        "{}",
        asked[0].body
    );
    let paths: Vec<_> = asked.iter().map(|asked| asked.path.as_str()).collect();
    let (file, tokens) = ("/v1/AUTH_p/container/open/a/b.bin", "/v3/auth/tokens");
    assert_eq!(paths[..5], [tokens, file, file, tokens, file]);
    assert!(paths[5..].iter().all(|path| *path == file));
    again(test, "swift://container/closed", &variables(&SECRET[1..]));
}

#[test]
fn what_is_missing_is_said_when_a_store_is_opened() {
    if let Ok(address) = env::var(ADDRESS) {
        let error = Store::open(&address).unwrap_err();
        assert!(matches!(error, StoreError::Address { .. }), "{error}");
        assert!(error.to_string().contains(&env::var("STRATUS_STORE_TEST_MISSING").unwrap()), "{error}");
        return;
    }
    let test = "what_is_missing_is_said_when_a_store_is_opened";
    again(test, "swift://container", &[("STRATUS_STORE_TEST_MISSING", "ST_KEY")]);
    let keystone =
        [("OS_AUTH_URL", "http://h"), ("OS_USERNAME", "me"), ("STRATUS_STORE_TEST_MISSING", "OS_PASSWORD")];
    again(test, "swift://container", &keystone);
    again(test, "az://container", &[("STRATUS_STORE_TEST_MISSING", "AZURE_STORAGE_ACCOUNT")]);
}
