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
    # The spec, not the launch, has the defaults of the workers: Terraform reads some of these settings back wrongly.
    run gcloud dataflow flex-template build "$spec" --project="$PROJECT" --image="$image" \
        --sdk-language=PYTHON --metadata-file=templates/metadata.json --enable-streaming-engine \
        --staging-location="gs://$bucket/staging" --temp-location="gs://$bucket/temp" \
        --worker-machine-type="${MACHINE_TYPE:-n2-standard-2}" --max-workers="${MAX_WORKERS:-5}"
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
    # The image of the workers is in the spec.
    local options=(
        --project="$PROJECT" --region="$REGION" --template-file-gcs-location="$spec" --parameters="^ ^$*"
        --staging-location="gs://$bucket/staging" --temp-location="gs://$bucket/temp" --enable-streaming-engine
    )
    [ -z "${SERVICE_ACCOUNT:-}" ] || options+=(--service-account-email="$SERVICE_ACCOUNT")
    [ -z "${MACHINE_TYPE:-}" ] || options+=(--worker-machine-type="$MACHINE_TYPE")
    [ -z "${LAUNCHER_MACHINE_TYPE:-}" ] || options+=(--launcher-machine-type="$LAUNCHER_MACHINE_TYPE")
    [ -z "${NUM_WORKERS:-}" ] || options+=(--num-workers="$NUM_WORKERS")
    [ -z "${MAX_WORKERS:-}" ] || options+=(--max-workers="$MAX_WORKERS")
    [ -z "${SUBNETWORK:-}" ] || options+=(--subnetwork="$SUBNETWORK")
    [ -z "${KMS_KEY:-}" ] || options+=(--dataflow-kms-key="$KMS_KEY")
    [ -z "${LABELS:-}" ] || options+=(--additional-user-labels="$(joined LABELS)")
    [ -z "${PIPELINE_OPTIONS:-}" ] || options+=(--additional-pipeline-options="$(joined PIPELINE_OPTIONS)")
    # A launch of a template takes Dataflow's service options as experiments.
    local SERVICE_OPTIONS="${SERVICE_OPTIONS:-} ${MIN_WORKERS:+min_num_workers=$MIN_WORKERS}"
    if switch AT_LEAST_ONCE; then SERVICE_OPTIONS+=' streaming_mode_at_least_once'; fi
    [ -z "${SERVICE_OPTIONS// /}" ] || options+=(--additional-experiments="$(joined SERVICE_OPTIONS)")
    if switch PRIVATE; then
        options+=(--disable-public-ips)
        check_private_access
    fi
    if switch UPDATE; then
        need JOB "the name of the running job, JOB=tidetable"
        options+=(--update)
        if switch SNAPSHOT; then snapshot; fi
    elif switch SNAPSHOT; then
        echo "make: SNAPSHOT is 1 without UPDATE=1; it must be set with an update" >&2 && exit 2
    fi
    run gcloud dataflow flex-template run "${JOB:-tidetable-$(date -u +%Y%m%d-%H%M%S)}" "${options[@]}"
}

# Prints the words of a variable as a list for gcloud. Its separator is a space, which no word contains.
joined() {
    local words
    read -r -d '' -a words <<<"${!1}" || true # at the end of the input, read returns 1
    echo "^ ^${words[*]}"
}

# Fails if the workers' subnetwork has no Private Google Access. Without it, workers that have no public addresses do not
# reach Google's services, and Dataflow refuses the job. Only warns if the subnetwork can't be read.
check_private_access() {
    local owner=$PROJECT area=$REGION name=${SUBNETWORK:-default} access
    case "$name" in *projects/*) owner=${name##*projects/} owner=${owner%%/*} ;; esac
    case "$name" in *regions/*) area=${name##*regions/} area=${area%%/*} ;; esac
    name=${name##*/}
    local place=("$name" --project="$owner" --region="$area")
    local remedy="gcloud compute networks subnets update ${place[*]} --enable-private-ip-google-access"
    if [ "$dry_run" = 1 ]; then
        echo "make: DRY_RUN: whether subnetwork $name has Private Google Access is not checked; PRIVATE=1 needs it: $remedy" >&2
    elif ! access=$(gcloud compute networks subnets describe "${place[@]}" --format='value(privateIpGoogleAccess)' 2>&1); then
        echo "make: could not check whether subnetwork $name has Private Google Access, which PRIVATE=1 needs: ${access##*$'\n'}" >&2
        echo "make: if Dataflow refuses the job: $remedy" >&2
    elif [ "$access" != True ]; then
        echo "make: subnetwork $name has no Private Google Access, which PRIVATE=1 needs; enable it: $remedy" >&2
        exit 1
    fi
}

# Takes a snapshot of the running job, with the position of its subscription, and waits until it is complete.
snapshot() {
    local place=(--project="$PROJECT" --region="$REGION") job id state
    local list=(gcloud dataflow jobs list "${place[@]}" --status=active --filter="name=$JOB" --format='value(id)')
    local create=(gcloud dataflow snapshots create "${place[@]}" --snapshot-sources=true --format='value(id)')
    if [ "$dry_run" = 1 ]; then
        echo "$(run "${create[@]}") --job-id=\"\$($(run "${list[@]}"))\""
        return
    fi
    job=$("${list[@]}")
    [ -n "$job" ] || { echo "make: no job named $JOB is running in $REGION; see: gcloud dataflow jobs list" >&2 && exit 1; }
    id=$("${create[@]}" --job-id="$job")
    echo "snapshot $id of job $job, kept for 7 days"
    while state=$(gcloud dataflow snapshots describe "$id" "${place[@]}" --format='value(state)'); do
        case "$state" in
            READY) return ;;
            FAILED | DELETED) echo "make: snapshot $id is $state; the job was not updated" >&2 && exit 1 ;;
        esac
        sleep 5
    done
    exit 1
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
