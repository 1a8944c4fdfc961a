//! Creation of object stores and their credentials.
//!
//! Credentials are read only from the environment variables and files that the tools of each service use.

use std::sync::Arc;

use opendal::services::{Azblob, Gcs, S3, Swift};
use opendal::{HttpTransporter, OperationContext, Operator};

use super::ObjectStore;
use super::environment::variable;
use super::swift::{self, SwiftClient};
use super::transport::{SendRequest, Transport};
use crate::address::Service;
use crate::secret::Secrets;
use crate::web::HttpClient;
use crate::{RetryPolicy, StoreError};

const S3_ADVICE: &str = "looked for credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE \
                         and ~/.aws, and for the region and endpoint in AWS_REGION and AWS_ENDPOINT_URL_S3 \
                         or AWS_ENDPOINT_URL; AWS_NO_SIGN_REQUEST=YES reads public data without credentials";
const AZURE_ADVICE: &str = "looked for credentials in AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT \
                            with AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, and those of azure-identity \
                            (AZURE_CLIENT_ID …); AZURE_NO_SIGN_REQUEST=YES reads public data without \
                            credentials";
const GOOGLE_ADVICE: &str = "looked for credentials in GOOGLE_APPLICATION_CREDENTIALS and those of `gcloud \
                             auth application-default login`; GS_NO_SIGN_REQUEST=YES reads public data \
                             without credentials";

/// Environment variables with secret values.
const SECRETS: [&str; 18] = [
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZBLOB_ACCOUNT_KEY",
    "AZURE_CLIENT_SECRET",
    "AZURE_MSI_SECRET",
    "GOOGLE_OAUTH_ACCESS_TOKEN",
    "OS_PASSWORD",
    "OS_AUTH_TOKEN",
    "OS_TOKEN",
    "OS_APPLICATION_CREDENTIAL_SECRET",
    "OS_STORAGE_TOKEN",
    "ST_KEY",
    "SWIFT_KEY",
];

fn is_enabled(name: &str) -> bool {
    variable(&[name])
        .is_some_and(|value| ["yes", "true", "1", "on"].contains(&value.to_ascii_lowercase().as_str()))
}

/// Opens the objects of `container` below `prefix`, which is empty or a folder.
pub(crate) fn open(
    service: Service,
    container: &str,
    prefix: &str,
    address: String,
    retry_policy: RetryPolicy,
) -> Result<ObjectStore, StoreError> {
    let mut secrets = Secrets::from_env(&SECRETS);
    // Each secret of a connection string must be redacted on its own.
    for part in variable(&["AZURE_STORAGE_CONNECTION_STRING"]).unwrap_or_default().split(';') {
        if let Some((_, secret)) =
            part.split_once('=').filter(|(name, _)| name.contains("Key") || name.contains("Sig"))
        {
            secrets.add(secret);
        }
    }
    let invalid = |problem: String| StoreError::Address { address: address.clone(), problem };
    let unusable = |error: opendal::Error| invalid(secrets.redact(error.message()));
    let root = format!("/{prefix}");
    let client = HttpClient::new(retry_policy, secrets.clone(), 0);
    let (operator, advice) = match service {
        Service::S3 => {
            (with_client(Operator::new(s3(container, &root)).map_err(unusable)?, client), S3_ADVICE)
        }
        Service::Azure => {
            let azure = azure(container, &root).map_err(unusable)?.ok_or_else(|| {
                invalid(
                    "missing account: set AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_CONNECTION_STRING"
                        .to_owned(),
                )
            })?;
            (with_client(Operator::new(azure).map_err(unusable)?, client), AZURE_ADVICE)
        }
        Service::Google => {
            (with_client(Operator::new(google(container, &root)).map_err(unusable)?, client), GOOGLE_ADVICE)
        }
        Service::Swift => {
            let login = swift::SwiftAuth::from_env().map_err(&invalid)?;
            let swift = Swift::default().endpoint(swift::PLACEHOLDER).container(container).root(&root);
            (
                with_client(Operator::new(swift).map_err(unusable)?, SwiftClient::new(login, client)),
                swift::ADVICE,
            )
        }
    };
    let hidden = (service == Service::Swift && prefix.is_empty()).then_some(swift::SEGMENTS);
    Ok(ObjectStore { operator, address, secrets, advice, hidden })
}

fn with_client(operator: Operator, sender: impl SendRequest) -> Operator {
    let transport = HttpTransporter::new(Transport(Arc::new(sender)));
    operator.with_context(OperationContext::new().with_http_transport(transport))
}

fn s3(bucket: &str, root: &str) -> S3 {
    let region = variable(&["AWS_REGION", "AWS_DEFAULT_REGION"]).unwrap_or_else(|| "us-east-1".to_owned());
    let mut s3 = S3::default().bucket(bucket).root(root).region(&region);
    match variable(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]) {
        Some(endpoint) => s3 = s3.endpoint(&endpoint),
        // Amazon addresses buckets as hosts; its certificates do not cover names with a dot.
        None if !bucket.contains('.') => s3 = s3.enable_virtual_host_style(),
        None => {}
    }
    if is_enabled("AWS_EC2_METADATA_DISABLED") {
        s3 = s3.disable_ec2_metadata();
    }
    if is_enabled("AWS_NO_SIGN_REQUEST") { s3.skip_signature() } else { s3 }
}

/// Returns `None` if no account is set.
fn azure(container: &str, root: &str) -> opendal::Result<Option<Azblob>> {
    let mut azure = if let Some(connection) = variable(&["AZURE_STORAGE_CONNECTION_STRING"]) {
        Azblob::from_connection_string(&connection)?
    } else {
        let Some(account) =
            variable(&["AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME", "AZBLOB_ACCOUNT_NAME"])
        else {
            return Ok(None);
        };
        let endpoint = variable(&["AZURE_STORAGE_SERVICE_ENDPOINT", "AZBLOB_ENDPOINT"])
            .unwrap_or_else(|| format!("https://{account}.blob.core.windows.net"));
        let mut azure = Azblob::default().endpoint(&endpoint).account_name(&account);
        if let Some(key) = variable(&["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZBLOB_ACCOUNT_KEY"])
        {
            azure = azure.account_key(&key);
        }
        if let Some(token) = variable(&["AZURE_STORAGE_SAS_TOKEN"]) {
            azure = azure.sas_token(token.trim_start_matches('?'));
        }
        azure
    };
    azure = azure.container(container).root(root);
    Ok(Some(if is_enabled("AZURE_NO_SIGN_REQUEST") { azure.skip_signature() } else { azure }))
}

fn google(bucket: &str, root: &str) -> Gcs {
    let mut google = Gcs::default().bucket(bucket).root(root);
    if let Some(endpoint) = variable(&["STORAGE_EMULATOR_HOST"]) {
        let endpoint = if endpoint.contains("://") { endpoint } else { format!("http://{endpoint}") };
        google = google.endpoint(&endpoint);
    }
    if is_enabled("GS_NO_SIGN_REQUEST") { google.skip_signature() } else { google }
}
