//! Object stores, emulated by a server on the loopback interface: requests, authentication and error
//! messages. Credentials are environment variables, so each test runs in its own process, which is this
//! program again.

use std::env;
use std::process::Command;
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::web::{ReceivedRequest, Reply, Server, brief, content};
use stratus_store::{RetryPolicy, Store, StoreError};

/// Set for a process started by a test.
const ADDRESS: &str = "STRATUS_STORE_TEST_ADDRESS";

/// A secret that no message may contain.
const SECRET: &str = "c2VjcmV0LWtleS10aGF0LW5vYm9keS1zZWVz";

/// Runs this test again in another process with only these variables of the services.
fn run_again(test: &str, address: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(env::current_exe().unwrap());
    for (name, _) in env::vars() {
        if ["AWS_", "AZURE_", "AZBLOB_", "GOOGLE_", "GS_", "OS_", "ST_", "STORAGE_"]
            .iter()
            .any(|kind| name.starts_with(kind))
        {
            command.env_remove(name);
        }
    }
    // The name of a test includes its module.
    let test = format!("services::{test}");
    command.args(["--exact", &test, "--nocapture"]).env(ADDRESS, address).env("HOME", "/nowhere");
    let status = command.envs(variables.iter().copied()).status().unwrap();
    assert!(status.success(), "{test} in its own process");
}

fn store() -> Option<Store> {
    let address = env::var(ADDRESS).ok()?;
    let retry_policy = if env::var_os("STRATUS_STORE_TEST_DEFAULT_RETRIES").is_some() {
        RetryPolicy::default()
    } else {
        brief()
    };
    Some(Store::open_with_policy(&address, retry_policy).unwrap())
}

fn host(server: &Server) -> String {
    server.address.trim_end_matches("/data").to_owned()
}

/// Checks that a file of 1000 bytes can be read.
fn check_reads(store: &Store) {
    assert_eq!(store.size("a/b.bin").unwrap(), Some(1000));
    assert_eq!(store.read("a/b.bin", 1000).unwrap(), content(1000));
    let mut part = [0; 10];
    store.read_at("a/b.bin", 500, &mut part).unwrap();
    assert_eq!(part, content(1000)[500..510]);
}

/// Checks that requests are refused with a redacted error that names `variable`.
fn check_refusal(store: &Store, variable: &str) {
    let began = Instant::now();
    let errors = [
        store.size("a").unwrap_err(),
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

/// Checks a readable store if its address ends with `open`, else a store that refuses.
fn check_store(store: &Store, variable: &str) {
    if store.address().ends_with("open") {
        check_reads(store);
    } else {
        check_refusal(store, variable);
    }
}

/// An error page that repeats the request and the secret, like object stores do.
fn refusal(request: &ReceivedRequest) -> Reply {
    let sent = request.headers.join(" ");
    Reply::Status(
        403,
        format!(
            "<Error><Code>SignatureDoesNotMatch</Code><Message>{SECRET} {sent} {}</Message></Error>",
            request.path
        ),
    )
}

#[test]
fn s3_signs_requests_and_redacts_errors() {
    if let Some(store) = store() {
        return check_store(&store, "AWS_SECRET_ACCESS_KEY");
    }
    let server = Server::start(content(1000), |request| match request.path.split(['/', '?']).nth(1) {
        Some("bucket") => Reply::Serve,
        _ => refusal(request),
    });
    let (host, test) = (host(&server), "s3_signs_requests_and_redacts_errors");
    let keys = [("AWS_ACCESS_KEY_ID", "the-id"), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_REGION", "eu-1")];
    let endpoint = ("AWS_ENDPOINT_URL_S3", host.as_str());
    run_again(test, "s3://bucket/open", &[keys.as_slice(), &[endpoint]].concat());
    for request in server.requests() {
        assert_eq!(request.path, "/bucket/open/a/b.bin");
        let signature = request.header("Authorization").unwrap();
        assert!(
            signature.contains("Credential=the-id/") && signature.contains("/eu-1/s3/aws4_request"),
            "{signature}"
        );
    }
    run_again(test, "s3://closed", &[keys.as_slice(), &[endpoint]].concat());
    // Without credentials, and without AWS_NO_SIGN_REQUEST.
    run_again(test, "s3://closed/x", &[endpoint, ("AWS_EC2_METADATA_DISABLED", "true")]);
    let before = server.requests().len();
    run_again(test, "s3://bucket/open", &[endpoint, ("AWS_NO_SIGN_REQUEST", "YES")]);
    assert!(server.requests()[before..].iter().all(|request| request.header("Authorization").is_none()));
}

#[test]
fn threads_read_concurrently() {
    const THREADS: usize = 6;
    if let Some(store) = store() {
        return thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| assert_eq!(store.read("a", 1000).unwrap(), content(1000)));
            }
        });
    }
    // The server sends content only once every thread has requested it.
    let (waiting, all_waiting) = (Mutex::new(0), Condvar::new());
    let server = Server::start(content(1000), move |request| {
        if request.method == "GET" {
            let mut waiting = waiting.lock().unwrap();
            *waiting += 1;
            all_waiting.notify_all();
            let too_few = |waiting: &mut usize| *waiting < THREADS;
            let waited = all_waiting.wait_timeout_while(waiting, Duration::from_secs(20), too_few).unwrap();
            if waited.1.timed_out() {
                return Reply::Status(403, "not concurrent".to_owned());
            }
        }
        Reply::Serve
    });
    let host = host(&server);
    let variables =
        [("AWS_ENDPOINT_URL", host.as_str()), ("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", SECRET)];
    // The first responses take longer than the timeout of the other tests.
    run_again(
        "threads_read_concurrently",
        "s3://bucket",
        &[&variables[..], &[("STRATUS_STORE_TEST_DEFAULT_RETRIES", "1")]].concat(),
    );
}

#[test]
fn azure_signs_requests_and_redacts_errors() {
    if let Some(store) = store() {
        return check_store(&store, "AZURE_STORAGE_KEY");
    }
    let server = Server::start(content(1000), |request| match request.path.contains("/pictures/") {
        true => Reply::Serve,
        false => refusal(request),
    });
    let (host, test) = (host(&server), "azure_signs_requests_and_redacts_errors");
    let connection = format!("AccountName=me;AccountKey={SECRET};BlobEndpoint={host}/me");
    for variables in [
        &[("AZURE_STORAGE_CONNECTION_STRING", connection.as_str())][..],
        &[
            ("AZURE_STORAGE_ACCOUNT", "me"),
            ("AZURE_STORAGE_KEY", SECRET),
            ("AZURE_STORAGE_SERVICE_ENDPOINT", &host),
        ],
    ] {
        let before = server.requests().len();
        run_again(test, "az://pictures/open", variables);
        for request in &server.requests()[before..] {
            assert!(request.path.ends_with("/pictures/open/a/b.bin"), "{}", request.path);
            assert!(request.header("Authorization").unwrap().starts_with("SharedKey me:"));
        }
        run_again(test, "az://closed", variables);
    }
}

#[test]
fn google_reads_objects_and_sizes() {
    if let Some(store) = store() {
        return check_reads(&store);
    }
    let server = Server::start(content(1000), |request| {
        let is_known = request.path.contains("/open%2Fa%2Fb.bin") || request.path.ends_with("/open/a/b.bin");
        match request.path.contains("alt=media") || request.first.is_some() {
            _ if !is_known => Reply::Status(404, "no such object".to_owned()),
            true => Reply::Serve,
            false => {
                let metadata = r#"{"size":"1000","etag":"x","updated":"2026-01-01T00:00:00Z",
                    "md5Hash":"","contentType":"image/x"}"#;
                Reply::Page("Content-Type: application/json\r\n".to_owned(), metadata.to_owned())
            }
        }
    });
    let variables = [("STORAGE_EMULATOR_HOST", host(&server)), ("GS_NO_SIGN_REQUEST", "YES".to_owned())];
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    run_again("google_reads_objects_and_sizes", "gs://bucket/open", &variables);
    assert!(server.requests().iter().all(|request| request.header("Authorization").is_none()));
}

#[test]
fn keystone_renews_expired_tokens() {
    if let Some(store) = store() {
        return check_store(&store, "OS_PASSWORD");
    }
    let server = Server::start(content(1000), |request| {
        if request.path == "/v3/auth/tokens" {
            if !request.body.contains(&format!(r#""password":"{SECRET}""#)) {
                return Reply::Status(401, format!("<p>invalid: {}</p>", request.body));
            }
            let host = request.header("Host").unwrap();
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
            return Reply::Page(format!("X-Subject-Token: token-{}\r\n", request.earlier), catalogue);
        }
        // The first token is valid for one request, the second for all.
        match (request.header("X-Auth-Token"), request.earlier) {
            (Some("token-0"), 1) | (Some("token-3"), _) => Reply::Serve,
            _ => Reply::Status(401, "<html><h1>Unauthorized</h1><p>expired</p></html>".to_owned()),
        }
    });
    let (host, test) = (host(&server), "keystone_renews_expired_tokens");
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
    run_again(test, "swift://container/open", &variables(SECRET));
    let requests = server.requests();
    assert!(
        requests[0].body.contains(r#""project":{"domain":{"name":"Physics"},"name":"pictures"}"#),
        "{}",
        requests[0].body
    );
    let paths: Vec<_> = requests.iter().map(|request| request.path.as_str()).collect();
    let (file, tokens) = ("/v1/AUTH_p/container/open/a/b.bin", "/v3/auth/tokens");
    assert_eq!(paths[..5], [tokens, file, file, tokens, file]);
    assert!(paths[5..].iter().all(|path| *path == file));
    run_again(test, "swift://container/closed", &variables(&SECRET[1..]));
}

#[test]
fn opening_a_store_reports_missing_credentials() {
    if let Ok(address) = env::var(ADDRESS) {
        let error = Store::open(&address).unwrap_err();
        assert!(matches!(error, StoreError::Address { .. }), "{error}");
        assert!(error.to_string().contains(&env::var("STRATUS_STORE_TEST_MISSING").unwrap()), "{error}");
        return;
    }
    let test = "opening_a_store_reports_missing_credentials";
    run_again(test, "swift://container", &[("STRATUS_STORE_TEST_MISSING", "ST_KEY")]);
    let keystone =
        [("OS_AUTH_URL", "http://h"), ("OS_USERNAME", "me"), ("STRATUS_STORE_TEST_MISSING", "OS_PASSWORD")];
    run_again(test, "swift://container", &keystone);
    run_again(test, "az://container", &[("STRATUS_STORE_TEST_MISSING", "AZURE_STORAGE_ACCOUNT")]);
}
