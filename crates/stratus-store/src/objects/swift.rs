//! Authentication for OpenStack Swift.
//!
//! Keystone (version 3) or Swift's own authentication (version 1) returns a token and the address of the
//! account's storage. Both are requested with the first request, and again when the token has expired.
//! OpenDAL builds its requests for a placeholder address.

use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use ureq::http::{HeaderValue, Request, StatusCode, Uri, header};

use super::environment::variable;
use super::transport::SendRequest;
use crate::web::{HttpClient, HttpResponse, RequestError};

/// The placeholder of the storage address until it is known.
pub(super) const PLACEHOLDER: &str = "http://storage.invalid";

/// The folder in which OpenDAL stores the parts of large objects, in the same container.
pub(super) const SEGMENTS: &str = ".segments/";

pub(super) const ADVICE: &str = "looked for credentials in OS_STORAGE_URL and OS_AUTH_TOKEN; ST_AUTH, \
                                 ST_USER and ST_KEY; OS_AUTH_URL with OS_USERNAME, OS_PASSWORD, \
                                 OS_PROJECT_NAME, OS_USER_DOMAIN_NAME, OS_PROJECT_DOMAIN_NAME and \
                                 OS_REGION_NAME, or with OS_APPLICATION_CREDENTIAL_ID and \
                                 OS_APPLICATION_CREDENTIAL_SECRET";

/// The maximum size of a service catalogue, which takes up to 30 times as much memory.
const MAX_CATALOGUE_BYTES: u64 = 1 << 20;

/// The authentication method.
pub(super) enum SwiftAuth {
    /// A given token.
    Token(Token),
    /// Swift's own authentication, version 1.
    V1 { address: String, user: String, key: String },
    /// Keystone, version 3.
    KeystoneV3 { address: String, body: Value, region: Option<String>, interface: String },
}

/// A token and the storage address for which it is valid.
#[derive(Clone)]
pub(super) struct Token {
    /// The address of the account's storage, without a trailing `/`.
    storage: String,
    token: HeaderValue,
}

impl SwiftAuth {
    /// Reads the environment variables of Swift's own tools. The error names the missing one.
    pub(super) fn from_env() -> Result<Self, String> {
        if let (Some(storage), Some(token)) =
            (variable(&["OS_STORAGE_URL"]), variable(&["OS_AUTH_TOKEN", "OS_STORAGE_TOKEN"]))
        {
            let token = Token::new(&storage, &token)
                .ok_or("invalid OS_AUTH_TOKEN: it contains a control character")?;
            return Ok(Self::Token(token));
        }
        if let (Some(address), Some(user), Some(key)) =
            (variable(&["ST_AUTH"]), variable(&["ST_USER"]), variable(&["ST_KEY"]))
        {
            return Ok(Self::V1 { address, user, key });
        }
        let Some(address) = variable(&["OS_AUTH_URL"]) else {
            return Err(format!("missing credentials: {ADVICE}"));
        };
        let address = address.trim_end_matches('/');
        let version = if address.ends_with("/v3") { "" } else { "/v3" };
        Ok(Self::KeystoneV3 {
            address: format!("{}{version}/auth/tokens", address.trim_end_matches("/v2.0")),
            body: keystone_body()?,
            region: variable(&["OS_REGION_NAME"]),
            interface: variable(&["OS_INTERFACE", "OS_ENDPOINT_TYPE"])
                .map_or_else(|| "public".to_owned(), |name| name.trim_end_matches("URL").to_owned()),
        })
    }

    /// Requests a new token. Returns the response if the server refuses it.
    fn sign_in(&self, client: &HttpClient) -> Result<Result<Token, HttpResponse>, RequestError> {
        match self {
            Self::Token(token) => Ok(Ok(token.clone())),
            Self::V1 { address, user, key } => {
                let request = Request::get(address).header("X-Auth-User", user).header("X-Auth-Key", key);
                let response = client
                    .send(&request.body(Vec::new()).map_err(|error| unusable(client, "ST_AUTH", &error))?)?;
                if !response.status.is_success() {
                    return Ok(Err(response));
                }
                let text = |name: &str| response.headers.get(name)?.to_str().ok();
                let token = text("x-storage-url").zip(text("x-auth-token"));
                let token = token.and_then(|(storage, token)| Token::new(storage, token));
                token.map(Ok).ok_or_else(|| {
                    RequestError::Permanent(
                        "sign-in failed: no X-Storage-Url and X-Auth-Token in the response; check ST_AUTH"
                            .to_owned(),
                    )
                })
            }
            Self::KeystoneV3 { address, body, region, interface } => {
                let request = Request::post(address).header(header::CONTENT_TYPE, "application/json");
                let body = body.to_string().into_bytes();
                let response = client
                    .send(&request.body(body).map_err(|error| unusable(client, "OS_AUTH_URL", &error))?)?;
                if !response.status.is_success() {
                    return Ok(Err(response));
                }
                keystone_token(response, region.as_deref(), interface).map(Ok).map_err(|problem| {
                    RequestError::Permanent(format!(
                        "sign-in failed: {problem}; check OS_AUTH_URL and OS_REGION_NAME"
                    ))
                })
            }
        }
    }
}

fn unusable(client: &HttpClient, name: &str, error: &ureq::http::Error) -> RequestError {
    RequestError::Permanent(format!("invalid {name}: {}", client.secrets().redact(&error.to_string())))
}

/// The body of Keystone's `POST /v3/auth/tokens`.
fn keystone_body() -> Result<Value, String> {
    let named = |value: Option<String>, id: Option<String>| match id {
        Some(id) => json!({ "id": id }),
        None => json!({ "name": value.unwrap_or_else(|| "Default".to_owned()) }),
    };
    let required = |name: &str, missing: &'static str| variable(&[name]).ok_or(missing);
    let user_domain = named(variable(&["OS_USER_DOMAIN_NAME"]), variable(&["OS_USER_DOMAIN_ID"]));
    if let Some(secret) = variable(&["OS_APPLICATION_CREDENTIAL_SECRET"]) {
        let credential = match variable(&["OS_APPLICATION_CREDENTIAL_ID"]) {
            Some(id) => json!({ "id": id, "secret": secret }),
            None => json!({
                "name": required("OS_APPLICATION_CREDENTIAL_NAME", "missing OS_APPLICATION_CREDENTIAL_ID")?,
                "secret": secret,
                "user": { "name": required("OS_USERNAME", "missing OS_USERNAME")?, "domain": user_domain },
            }),
        };
        let identity = json!({ "methods": ["application_credential"], "application_credential": credential });
        return Ok(json!({ "auth": { "identity": identity } }));
    }
    let user = required("OS_USERNAME", "OS_AUTH_URL is set, but OS_USERNAME is missing")?;
    let password = required("OS_PASSWORD", "OS_AUTH_URL is set, but OS_PASSWORD is missing")?;
    let project = match (
        variable(&["OS_PROJECT_ID", "OS_TENANT_ID"]),
        variable(&["OS_PROJECT_NAME", "OS_TENANT_NAME"]),
    ) {
        (Some(id), _) => json!({ "id": id }),
        (None, Some(name)) => {
            let domain = named(variable(&["OS_PROJECT_DOMAIN_NAME"]), variable(&["OS_PROJECT_DOMAIN_ID"]));
            json!({ "name": name, "domain": domain })
        }
        (None, None) => return Err("OS_AUTH_URL is set, but OS_PROJECT_NAME is missing".to_owned()),
    };
    let user = json!({ "name": user, "domain": user_domain, "password": password });
    let identity = json!({ "methods": ["password"], "password": { "user": user } });
    Ok(json!({ "auth": { "identity": identity, "scope": { "project": project } } }))
}

/// Reads the token and the storage address from the response of Keystone.
fn keystone_token(response: HttpResponse, region: Option<&str>, interface: &str) -> Result<Token, String> {
    use std::io::Read;
    let token =
        response.headers.get("x-subject-token").cloned().ok_or("no X-Subject-Token in the response")?;
    let catalogue: Value = serde_json::from_reader(response.body.take(MAX_CATALOGUE_BYTES))
        .map_err(|_| "the response is not JSON".to_owned())?;
    let services = catalogue["token"]["catalog"].as_array().ok_or("no service catalogue in the response")?;
    let endpoints = services.iter().filter(|service| service["type"] == "object-store");
    let mut endpoints = endpoints.flat_map(|service| service["endpoints"].as_array().into_iter().flatten());
    let matches = |endpoint: &&Value| {
        let in_region = |name: &str| endpoint["region"] == name || endpoint["region_id"] == name;
        endpoint["interface"] == interface && region.is_none_or(in_region)
    };
    let storage = endpoints.find(matches).and_then(|endpoint| endpoint["url"].as_str());
    let storage = storage.ok_or_else(|| {
        format!("no object-store with interface {interface} in the region's service catalogue")
    })?;
    let token = token.to_str().map_err(|_| "the token is not ASCII")?;
    Token::new(storage, token).ok_or_else(|| "invalid token".to_owned())
}

/// Reads the answer of Keystone for `fuzz/`: its first line is the token, the rest the body.
#[cfg(fuzzing)]
pub(super) fn fuzz(answer: &[u8]) {
    let (token, body) = answer.split_at(answer.iter().position(|&byte| byte == b'\n').unwrap_or(0));
    let mut headers = ureq::http::HeaderMap::new();
    headers.extend(
        HeaderValue::from_bytes(token)
            .ok()
            .map(|token| (ureq::http::HeaderName::from_static("x-subject-token"), token)),
    );
    let body = Box::new(std::io::Cursor::new(body.to_vec()));
    let response = HttpResponse { status: StatusCode::CREATED, headers, length: None, body };
    if let Ok(token) = keystone_token(response, Some("region"), "public") {
        let _: Result<Uri, _> = format!("{}/container?prefix=a", token.storage).parse();
    }
}

impl Token {
    fn new(storage: &str, token: &str) -> Option<Self> {
        let mut token = HeaderValue::from_str(token).ok()?;
        token.set_sensitive(true);
        Some(Self { storage: storage.trim_end_matches('/').to_owned(), token })
    }
}

/// A client that adds a token to requests, and renews it when it has expired.
pub(super) struct SwiftClient {
    login: SwiftAuth,
    client: HttpClient,
    /// The current token and its number.
    token: Mutex<(u64, Option<Token>)>,
}

impl SwiftClient {
    pub(super) fn new(login: SwiftAuth, client: HttpClient) -> Self {
        Self { login, client, token: Mutex::new((0, None)) }
    }

    /// Returns the current token and its number. Requests a new one if there is none or its number is
    /// `refused`, while other threads wait. Returns the response if the server refuses it.
    fn token(&self, refused: Option<u64>) -> Result<Result<(u64, Token), HttpResponse>, RequestError> {
        let mut current = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let (number, Some(token)) = &*current
            && refused != Some(*number)
        {
            return Ok(Ok((*number, token.clone())));
        }
        Ok(match self.login.sign_in(&self.client)? {
            Ok(token) => {
                let number = current.0 + 1;
                *current = (number, Some(token.clone()));
                Ok((number, token))
            }
            Err(response) => Err(response),
        })
    }
}

impl SendRequest for SwiftClient {
    fn send(&self, mut request: Request<Vec<u8>>) -> Result<HttpResponse, RequestError> {
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let mut refused = None;
        loop {
            let (number, token) = match self.token(refused)? {
                Ok(token) => token,
                Err(response) => return Ok(response),
            };
            let address: Uri = format!("{}{target}", token.storage).parse().map_err(|_| {
                RequestError::Permanent(
                    "invalid address of the account's storage; check OS_STORAGE_URL".to_owned(),
                )
            })?;
            *request.uri_mut() = address;
            request.headers_mut().insert("X-Auth-Token", token.token);
            let response = self.client.send(&request)?;
            let is_fixed = matches!(self.login, SwiftAuth::Token(_));
            if response.status != StatusCode::UNAUTHORIZED || refused.is_some() || is_fixed {
                return Ok(response);
            }
            refused = Some(number);
        }
    }
}
