#!/usr/bin/env bash
# Publishes and launches the Flex Template. The Makefile calls it, with its variables in the environment:
#
#   flex.sh template    builds and pushes the image, publishes the template's spec
#   flex.sh launch      runs the published template
#
# DRY_RUN=1 prints the commands, ready to paste, without running them.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    echo "usage: make template|launch PROJECT=my-project REGION=europe-west4 REPOSITORY=my-repository ..." >&2
    exit 2
}

# Prints a line with an example for each missing variable, and exits if there is any.
need() {
    local missing=0
    while [ $# -gt 0 ]; do
        if [ -z "${!1:-}" ]; then
            echo "make: $1 is required: $2" >&2
            missing=1
        fi
        shift 2
    done
    [ "$missing" = 0 ] || exit 2
}

# Returns 0 if the variable is 1, and 1 if it is empty or 0. Any other value is a typo and an error.
switch() {
    case "${!1:-}" in
        1) return 0 ;;
        '' | 0) return 1 ;;
        *) echo "make: $1 is ${!1}; it must be 1 or 0" >&2 && exit 2 ;;
    esac
}

# Prints the argument quoted for a shell.
quoted() {
    case "$1" in
        '' | *[!A-Za-z0-9_./:=@%+,-]*) printf "'%s'" "${1//\'/\'\\\'\'}" ;;
        *) printf '%s' "$1" ;;
    esac
}

# Runs a command, or prints it on one line in a dry run.
run() {
    if [ "$dry_run" = 0 ]; then
        "$@"
        return
    fi
    local separator=''
    for argument in "$@"; do
        printf '%s' "$separator"
        quoted "$argument"
        separator=' '
    done
    printf '\n'
}

publish() {
    need "${place[@]}"
    case "${BUILDER:-cloud}" in
        cloud) # without a .gcloudignore, gcloud uploads the files that git does not ignore
            run gcloud builds submit --project="$PROJECT" --region="$REGION" \
                --config=templates/cloudbuild.yaml --substitutions=_IMAGE="$image" .
            ;;
        docker)
            run docker build --platform=linux/amd64 --file=templates/Dockerfile --tag="$image" .
            run docker push "$image"
            ;;
        *) echo "make: BUILDER is $BUILDER; it must be cloud or docker" >&2 && exit 2 ;;
    esac
    run gcloud dataflow flex-template build "$spec" --project="$PROJECT" --image="$image" \
        --sdk-language=PYTHON --metadata-file=templates/metadata.json --enable-streaming-engine
    run mkdir -p build
    run gcloud storage cp "$spec" build/template.json
    run python3 templates/complete_spec.py build/template.json templates/metadata.json
    run gcloud storage cp build/template.json "$spec"
    run echo "published $spec with $image"
}

launch() {
    need "${place[@]}" \
        PARAMETERS "the pipeline's flags, PARAMETERS='input_subscription=projects/my-project/subscriptions/events dead_letter_topic=projects/my-project/topics/dead-letters bigtable_instance=my-instance bigtable_table=sensors'"
    local parameter
    set -f # parameters are not file name patterns
    for parameter in $PARAMETERS; do
        case "$parameter" in
            [a-z]*=?*) ;;
            *) echo "make: PARAMETERS has '$parameter'; it must be name=value, separated by spaces" >&2 && exit 2 ;;
        esac
    done
    # In gcloud's syntax, ^ ^ makes a space the separator: the only character that no value contains.
    # shellcheck disable=SC2086
    set -- $PARAMETERS
    local options=(
        --project="$PROJECT" --region="$REGION" --template-file-gcs-location="$spec"
        --parameters="^ ^$* sdk_container_image=$image"
        --staging-location="gs://$bucket/staging" --temp-location="gs://$bucket/temp" --enable-streaming-engine
    )
    [ -z "${SERVICE_ACCOUNT:-}" ] || options+=(--service-account-email="$SERVICE_ACCOUNT")
    [ -z "${MACHINE_TYPE:-}" ] || options+=(--worker-machine-type="$MACHINE_TYPE")
    [ -z "${NUM_WORKERS:-}" ] || options+=(--num-workers="$NUM_WORKERS")
    [ -z "${MAX_WORKERS:-}" ] || options+=(--max-workers="$MAX_WORKERS")
    [ -z "${SUBNETWORK:-}" ] || options+=(--subnetwork="$SUBNETWORK")
    if switch PRIVATE; then options+=(--disable-public-ips); fi
    if switch AT_LEAST_ONCE; then options+=(--additional-experiments=streaming_mode_at_least_once); fi
    if switch UPDATE; then
        need JOB "the name of the running job, JOB=tidetable"
        options+=(--update)
    fi
    run gcloud dataflow flex-template run "${JOB:-tidetable-$(date -u +%Y%m%d-%H%M%S)}" "${options[@]}"
}

place=(
    PROJECT "the project of the job, PROJECT=my-project"
    REGION "the region of the job and its image, REGION=europe-west4"
    REPOSITORY "an Artifact Registry repository for images, in that region, REPOSITORY=my-repository"
)
dry_run=0
if switch DRY_RUN; then dry_run=1; fi

# Workers pull the image by this name while the job runs, so each version of the code has its own tag.
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
commit=$(git describe --always --dirty --exclude='*' 2>/dev/null || true)
tag=${TAG:-$version${commit:+-$commit}}
bucket=${BUCKET:-${PROJECT:-}-tidetable-staging} # the name that templates/terraform uses
image=${REGION:-}-docker.pkg.dev/${PROJECT:-}/${REPOSITORY:-}/tidetable:$tag
spec=gs://$bucket/templates/tidetable-$tag.json

case "${1:-}" in
    template) publish ;;
    launch) launch ;;
    *) usage ;;
esac
